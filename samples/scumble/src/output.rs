//! Standard output, and the places that files will go to.

use std::io::Write;
use std::path::{Path, PathBuf};

use scumble_core::image::check_writable;
use scumble_core::{Error, Result};

/// Writes text to standard output; `println!` would panic where nobody reads it to the end.
pub(crate) fn print(text: impl std::fmt::Display) -> Result<()> {
    let mut out = std::io::stdout();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        // Whoever closed the pipe has seen what they wanted.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| Error::io("standard output", error)),
    }
}

/// Finds out before minutes of work whether a picture can be written to `path` in the end.
pub(crate) fn check_picture(field: &'static str, path: &Path) -> Result<()> {
    let bad = |reason: String| Err(Error::invalid(field, reason));
    if path.is_dir() || path.file_name().is_none() {
        return bad(format!("{} is a folder, where a file's name is needed", path.display()));
    }
    // A device such as /dev/null takes anything; a file's name should say what is in it.
    let is_device = path.metadata().is_ok_and(|found| !found.is_file());
    let is_png = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("png"));
    if !is_png && !is_device {
        return bad(format!("{} doesn't end in .png, the only format that is written", path.display()));
    }
    let folder = folder_of(path);
    if !folder.is_dir() {
        return bad(format!("there is no folder {}", folder.display()));
    }
    check_writable(path)
}

/// As [`check_picture`], for files in a folder that may still have to be made.
pub(crate) fn check_folder(field: &'static str, folder: &Path) -> Result<()> {
    let Some(nearest) = folder.ancestors().find(|folder| folder.as_os_str().is_empty() || folder.exists()) else {
        return Ok(());
    };
    if !nearest.as_os_str().is_empty() && !nearest.is_dir() {
        return Err(Error::invalid(field, format!("{} is not a folder", nearest.display())));
    }
    check_writable(&nearest.join("text.safetensors"))
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// `out.png` → `out-2.png`.
pub(crate) fn numbered(output: &Path, number: usize) -> PathBuf {
    let mut name = output.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{number}"));
    if let Some(extension) = output.extension() {
        name.push(".");
        name.push(extension);
    }
    output.with_file_name(name)
}
