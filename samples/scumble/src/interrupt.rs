//! Ctrl-C as a flag that is looked at, so that a run ends at its next node and leaves nothing half done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use scumble_core::{Error, Result};

/// Set once the user asks to stop.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes over Ctrl-C and the terminate signal. A second one doesn't wait.
    pub(crate) fn install() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&flag);
        ctrlc::set_handler(move || {
            if seen.swap(true, Ordering::Relaxed) {
                std::process::exit(i32::from(crate::INTERRUPTED));
            }
        })
        .map_err(|error| Error::Internal(format!("Ctrl-C can't be handled: {error}")))?;
        Ok(Self(flag))
    }

    /// Whether the user asked to stop.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
