//! Where bytes come from: a file that is read by position, or memory.
//!
//! There is no memory map: a mapped file that somebody shortens ends the process with a signal,
//! while a positioned read gives an error that the caller can show.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Error, Result};

/// One file or block of memory, and how long it was when it was opened.
#[derive(Debug)]
pub(super) struct Source {
    path: PathBuf,
    len_bytes: u64,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    File(File),
    Static(&'static [u8]),
    Shared(Arc<[u8]>),
}

impl Source {
    /// Opens a regular file. Anything else (a folder, a pipe, a device) is refused before it is
    /// opened, since opening a pipe waits for its other end.
    pub(super) fn open(path: &Path) -> Result<Source> {
        let found = fs::metadata(path).map_err(|e| Error::io(path, e))?;
        if found.is_dir() {
            return Err(Error::format(path, "this is a folder, where a file was expected"));
        }
        if !found.is_file() {
            return Err(Error::unsupported(path, "this is not a regular file"));
        }
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        let len_bytes = file.metadata().map_err(|e| Error::io(path, e))?.len();
        Ok(Source { path: path.to_owned(), len_bytes, bytes: Bytes::File(file) })
    }

    pub(super) fn from_static(name: &str, bytes: &'static [u8]) -> Source {
        let len_bytes = bytes.len() as u64;
        Source { path: name.into(), len_bytes, bytes: Bytes::Static(bytes) }
    }

    pub(super) fn from_shared(name: &str, bytes: Arc<[u8]>) -> Source {
        let len_bytes = bytes.len() as u64;
        Source { path: name.into(), len_bytes, bytes: Bytes::Shared(bytes) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The length when it was opened.
    pub(super) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The length now: it differs when somebody shortened or extended the file meanwhile.
    pub(super) fn len_bytes_now(&self) -> Result<u64> {
        match &self.bytes {
            Bytes::File(file) => file.metadata().map(|found| found.len()).map_err(|e| Error::io(&self.path, e)),
            Bytes::Static(_) | Bytes::Shared(_) => Ok(self.len_bytes),
        }
    }

    /// Fills `out` with the bytes from `offset` on. An end before that is
    /// [`io::ErrorKind::UnexpectedEof`].
    pub(super) fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match &self.bytes {
            Bytes::File(file) => file_read_exact_at(file, offset, out),
            Bytes::Static(bytes) => slice_read_exact_at(bytes, offset, out),
            Bytes::Shared(bytes) => slice_read_exact_at(bytes, offset, out),
        }
    }
}

fn slice_read_exact_at(bytes: &[u8], offset: u64, out: &mut [u8]) -> io::Result<()> {
    let found = usize::try_from(offset)
        .ok()
        .and_then(|start| Some(start..start.checked_add(out.len())?))
        .and_then(|range| bytes.get(range))
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    out.copy_from_slice(found);
    Ok(())
}

#[cfg(unix)]
fn file_read_exact_at(file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(windows)]
fn file_read_exact_at(file: &File, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                out = &mut out[read..];
                offset += read as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A whole text file, refused unread when it is longer than `limit_bytes`.
pub(super) fn read_text(path: &Path, limit_bytes: u64) -> Result<String> {
    let source = Source::open(path)?;
    if source.len_bytes() > limit_bytes {
        let reason = format!("{} bytes is too long, at most {limit_bytes} are read", source.len_bytes());
        return Err(Error::format(path, reason));
    }
    let mut bytes = vec![0; source.len_bytes() as usize];
    source.read_exact_at(0, &mut bytes).map_err(|e| Error::io(path, e))?;
    String::from_utf8(bytes).map_err(|_| Error::format(path, "this text is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_reads_like_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bytes");
        fs::write(&path, b"0123456789").unwrap();
        let sources = [
            Source::open(&path).unwrap(),
            Source::from_static("static", b"0123456789"),
            Source::from_shared("shared", Arc::from(&b"0123456789"[..])),
        ];
        for source in sources {
            let mut out = [0; 4];
            source.read_exact_at(3, &mut out).unwrap();
            assert_eq!(&out, b"3456");
            for offset in [7, 10, u64::MAX - 1] {
                assert!(source.read_exact_at(offset, &mut out).is_err(), "{source:?} at {offset}");
            }
            assert_eq!(source.len_bytes_now().unwrap(), 10);
        }
    }

    #[test]
    fn only_regular_files_open() {
        let dir = tempfile::tempdir().unwrap();
        let error = Source::open(dir.path()).unwrap_err().to_string();
        assert!(error.ends_with("this is a folder, where a file was expected"), "{error}");
        assert!(matches!(Source::open(&dir.path().join("none")), Err(Error::Io { .. })));
        #[cfg(unix)]
        {
            let error = Source::open(Path::new("/dev/zero")).unwrap_err().to_string();
            assert_eq!(error, "/dev/zero: this is not a regular file");
        }
    }

    #[test]
    fn text_is_bounded_and_utf8() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        fs::write(&path, "grün").unwrap();
        assert_eq!(read_text(&path, 5).unwrap(), "grün");
        let error = read_text(&path, 4).unwrap_err().to_string();
        assert!(error.ends_with("5 bytes is too long, at most 4 are read"), "{error}");
        fs::write(&path, [0xff]).unwrap();
        let error = read_text(&path, 4).unwrap_err().to_string();
        assert!(error.ends_with("this text is not UTF-8"), "{error}");
    }
}
