//! What this build can compute on.

use std::ffi::CStr;

use crate::{log, sys};

/// The kind of a [`Device`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// The processor.
    Cpu,
    /// A graphics card with its own memory.
    Gpu,
    /// A graphics processor that shares the main memory.
    IntegratedGpu,
    /// Anything else that ggml lists (a matrix unit, a remote machine).
    Other,
}

/// A device that ggml can compute on, as it described itself when it was listed.
#[derive(Debug, Clone)]
pub struct Device {
    /// ggml's short name, such as `CPU` or `Vulkan0`.
    pub name: String,
    /// The maker's name of it.
    pub description: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// Free memory in bytes, 0 when unknown.
    pub free_bytes: usize,
    /// Total memory in bytes, 0 when unknown.
    pub total_bytes: usize,
}

/// Lists the devices of the back ends that this build has.
pub fn devices() -> Vec<Device> {
    log::install();
    // SAFETY: the registry is filled at first use, behind ggml's own lock.
    let count = unsafe { sys::ggml_backend_dev_count() };
    (0..count)
        .map(|index| {
            let (mut free_bytes, mut total_bytes) = (0, 0);
            // SAFETY: `index` is below the count; names are static strings of the device; the two
            // sizes are written before the call returns.
            unsafe {
                let raw = sys::ggml_backend_dev_get(index);
                sys::ggml_backend_dev_memory(raw, &mut free_bytes, &mut total_bytes);
                Device {
                    name: text(sys::ggml_backend_dev_name(raw)),
                    description: text(sys::ggml_backend_dev_description(raw)),
                    kind: kind(sys::ggml_backend_dev_type(raw)),
                    free_bytes,
                    total_bytes,
                }
            }
        })
        .collect()
}

fn kind(raw: sys::ggml_backend_dev_type) -> DeviceKind {
    match raw {
        sys::GGML_BACKEND_DEVICE_TYPE_CPU => DeviceKind::Cpu,
        sys::GGML_BACKEND_DEVICE_TYPE_GPU => DeviceKind::Gpu,
        sys::GGML_BACKEND_DEVICE_TYPE_IGPU => DeviceKind::IntegratedGpu,
        _ => DeviceKind::Other,
    }
}

/// # Safety
/// `raw` is null or a NUL-terminated string that is alive during the call.
pub(crate) unsafe fn text(raw: *const std::ffi::c_char) -> String {
    if raw.is_null() {
        return String::new();
    }
    // SAFETY: the caller's contract.
    unsafe { CStr::from_ptr(raw) }.to_string_lossy().into_owned()
}
