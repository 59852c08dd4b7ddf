//! ggml's messages go to `tracing`, never to a stream.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Once;

use crate::sys;

/// Routes ggml's process-wide log. One of the two exceptions to "no global state": ggml has only
/// one log, and left alone it writes to the host's standard error.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    // SAFETY: the callback is a plain function that lives for the whole process.
    ONCE.call_once(|| unsafe { sys::ggml_log_set(Some(on_message), std::ptr::null_mut()) });
}

unsafe extern "C" fn on_message(level: sys::ggml_log_level, text: *const c_char, _user: *mut c_void) {
    if text.is_null() {
        return;
    }
    // SAFETY: ggml passes a string that is NUL-terminated and alive during the call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    // A subscriber that panics must not unwind into ggml's C frames.
    let _ = std::panic::catch_unwind(|| forward(level, text.trim_end()));
}

fn forward(level: sys::ggml_log_level, text: &str) {
    match level {
        sys::GGML_LOG_LEVEL_ERROR => tracing::error!(target: "ggml", "{text}"),
        sys::GGML_LOG_LEVEL_WARN => tracing::warn!(target: "ggml", "{text}"),
        _ => tracing::debug!(target: "ggml", "{text}"),
    }
}
