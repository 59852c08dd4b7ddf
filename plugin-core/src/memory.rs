//! How much memory there is, asked before any is taken: a system that overcommits grants every
//! allocation and kills the process later.

use ggml::{Backend, Builder, Graph};

use crate::error::{Error, Result};

/// Left to the host and to everything that is too small to be counted.
const RESERVE_BYTES: u64 = 64 << 20;

/// Memory that work may still take on a device, as of one moment.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Bytes available.
    pub available_bytes: u64,
}

impl Budget {
    /// What `backend`'s device has left now.
    pub fn now(backend: &Backend) -> Self {
        let available_bytes = if backend.is_cpu() {
            available_host_bytes()
        } else {
            let device = ggml::devices().into_iter().find(|device| device.name == backend.name());
            match device {
                // A device that doesn't know is not held to anything.
                None => u64::MAX,
                Some(device) if device.free_bytes == 0 => u64::MAX,
                Some(device) => device.free_bytes as u64,
            }
        };
        Self { available_bytes }
    }

    /// What the host's own memory has left now.
    pub fn of_host() -> Self {
        Self { available_bytes: available_host_bytes() }
    }

    /// Refuses `needed_bytes` for `what` if they are not there.
    pub fn check(self, what: &str, needed_bytes: u64) -> Result<()> {
        if needed_bytes.saturating_add(RESERVE_BYTES) <= self.available_bytes {
            return Ok(());
        }
        Err(Error::OutOfMemory { what: what.into(), needed_bytes, available_bytes: Some(self.available_bytes) })
    }

    /// The most bytes that one more allocation may take.
    pub fn limit(self) -> usize {
        usize::try_from(self.available_bytes.saturating_sub(RESERVE_BYTES)).unwrap_or(usize::MAX)
    }

    /// Allocates a graph if its memory is there; `what` is what an error calls it.
    pub fn build(self, what: &str, builder: Builder, backend: &Backend) -> Result<Graph> {
        builder.build(backend, self.limit()).map_err(|error| self.explain(what, error))
    }

    /// Refuses a graph as [`Budget::build`] would, without allocating it.
    pub fn check_graph(self, what: &str, builder: Builder, backend: &Backend) -> Result<()> {
        // With nothing allowed ggml measures, and stops there.
        match builder.build(backend, 0) {
            Ok(_) => Ok(()),
            Err(ggml::Error::Alloc { bytes, .. }) => self.check(what, bytes as u64),
            Err(error) => Err(error.into()),
        }
    }

    fn explain(self, what: &str, error: ggml::Error) -> Error {
        match error {
            ggml::Error::Alloc { bytes, .. } => Error::OutOfMemory {
                what: what.into(),
                needed_bytes: bytes as u64,
                available_bytes: Some(self.available_bytes),
            },
            error => error.into(),
        }
    }
}

/// The smallest of: free memory, the control group's rest, the process's own limit.
fn available_host_bytes() -> u64 {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let group = system.cgroup_limits().map_or(u64::MAX, |limits| limits.free_memory);
    system.available_memory().min(group).min(address_space_left())
}

/// What `RLIMIT_AS` (`ulimit -v`) leaves to this process.
#[cfg(target_os = "linux")]
fn address_space_left() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    let Some(limit) = limit else { return u64::MAX };
    // The first field is the size of the address space in pages.
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').next().and_then(|field| field.parse::<u64>().ok()))
        .unwrap_or(0);
    limit.saturating_sub(pages * rustix::param::page_size() as u64)
}

#[cfg(not(target_os = "linux"))]
fn address_space_left() -> u64 {
    u64::MAX
}
