//! Files that are there as a whole, or not at all.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::error::{Error, Result};

/// Writes a file beside `path` and puts it in its place when all of it is written.
///
/// If `write` or the disk fails, or the thread unwinds, what was at `path` before stays, and nothing
/// else is left behind. A link is followed; what is not a plain file (`/dev/stdout`) is written to.
pub fn write_atomically(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let io = |error| Error::io(path, error);
    // Renaming would replace a link or a device instead of writing to what it stands for.
    let target = match fs::metadata(path) {
        Ok(found) if found.is_file() => fs::canonicalize(path).map_err(io)?,
        Ok(found) if found.is_dir() => return Err(io(std::io::ErrorKind::IsADirectory.into())),
        Ok(_) => {
            let mut device = BufWriter::new(fs::OpenOptions::new().write(true).open(path).map_err(io)?);
            write(&mut device)?;
            return device.flush().map_err(io);
        }
        Err(_) => path.to_path_buf(),
    };
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut builder = tempfile::Builder::new();
    builder.prefix(".scumble-");
    permit_as_usual(&mut builder);
    let file = builder.tempfile_in(folder.unwrap_or(Path::new("."))).map_err(io)?;
    let mut buffered = BufWriter::new(file);
    write(&mut buffered)?;
    let file = buffered.into_inner().map_err(|error| io(error.into_error()))?;
    file.as_file().sync_all().map_err(io)?;
    file.persist(&target).map_err(|error| io(error.error))?;
    Ok(())
}

/// Whether [`write_atomically`] could write to `path` now, found out without leaving a trace: for a
/// caller who has minutes of work before the writing.
pub fn check_writable(path: &Path) -> Result<()> {
    let io = |error| Error::io(path, error);
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => fs::OpenOptions::new().write(true).open(path).map(drop).map_err(io),
        _ => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            tempfile::tempfile_in(folder.unwrap_or(Path::new("."))).map(drop).map_err(io)
        }
    }
}

/// Temporary files are their owner's alone; a result is as readable as the umask lets it be.
#[cfg(unix)]
fn permit_as_usual(builder: &mut tempfile::Builder<'_, '_>) {
    use std::os::unix::fs::PermissionsExt;
    builder.permissions(fs::Permissions::from_mode(0o666));
}

#[cfg(not(unix))]
fn permit_as_usual(_: &mut tempfile::Builder<'_, '_>) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_or_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let bytes = |bytes: &'static [u8]| {
            move |out: &mut dyn Write| out.write_all(bytes).map_err(|error| Error::io("a", error))
        };
        write_atomically(&path, bytes(b"one")).unwrap();
        let failed = write_atomically(&path, |out| {
            bytes(b"half")(out)?;
            Err(Error::Cancelled)
        });
        assert!(matches!(failed, Err(Error::Cancelled)));
        let panicked = std::panic::catch_unwind(|| write_atomically(&path, |_| panic!("stop")));
        assert!(panicked.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"one");
        write_atomically(&path, bytes(b"two")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn unwritable_places_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().join("none/a"), folder.path().into(), "".into()] {
            let error = write_atomically(&path, |_| Ok(())).unwrap_err();
            assert!(matches!(error, Error::Io { .. }), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_and_devices_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_atomically(&link, |out| out.write_all(b"new").map_err(|error| Error::io("x", error))).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        write_atomically(Path::new("/dev/null"), |out| out.write_all(b"x").map_err(|error| Error::io("x", error)))
            .unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
