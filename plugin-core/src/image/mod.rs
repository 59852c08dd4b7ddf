//! Pictures: in memory, in files, and as the numbers that networks take.

mod atomic;
mod convert;
mod file;
mod float;
mod jpeg;
mod mask;
mod pixels;
mod png;
mod resize;

pub use atomic::{check_writable, write_atomically};
pub use file::{Limits, decode, read};
pub use float::FloatImage;
pub use mask::Mask;
pub use pixels::Image;
pub use png::{encode_png, text_from_png, write_png};
