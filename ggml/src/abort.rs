//! The last resort: ggml answers what it takes for a programming error with `abort()`, and would take
//! a host's editor down.
//!
//! This crate checks everything that can be reached from input before ggml sees it. Should ggml give
//! up all the same, then after [`install`] the thread that it does so on is parked for ever instead,
//! so that the process lives, and [`last_words`] tells what ggml said. Who installs it must look
//! there now and then, since nothing else will tell: an engine inside a host, on each poll. Once
//! there is something, the engine is lost; its user should be told, and no [`crate::Backend`] used or
//! dropped any more:
//!
//! * Whoever waits for the parked thread waits for ever. If it is a worker of a thread pool, the
//!   other threads of that pool spin at a barrier in the middle of the graph, and can't be joined.
//! * What the thread held (locks, memory) stays held.
//!
//! A program that nobody has to outlive is better off without: ggml then prints its message and a
//! backtrace, and the process dies.
//!
//! The hook is global to the process, as ggml's is: the second of the two exceptions to "no global
//! state", beside the log.

use std::ffi::{CStr, c_char};
use std::sync::{Once, OnceLock};
use std::time::Duration;

use crate::sys;

static LAST_WORDS: OnceLock<String> = OnceLock::new();

/// What ggml said when it gave up, if it ever did: the place in its source and its message.
pub fn last_words() -> Option<&'static str> {
    LAST_WORDS.get().map(String::as_str)
}

/// Has the whole process park threads instead of aborting, from now on.
pub fn install() {
    static ONCE: Once = Once::new();
    // SAFETY: the callback is a plain function that lives for the whole process.
    ONCE.call_once(|| unsafe {
        sys::ggml_set_abort_callback(Some(on_abort));
    });
}

unsafe extern "C" fn on_abort(message: *const c_char) {
    let text = match message.is_null() {
        true => "ggml gave up without a word".into(),
        // SAFETY: ggml passes a string that is NUL-terminated and alive during the call.
        false => unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned(),
    };
    let _ = LAST_WORDS.set(text);
    // A subscriber that panics must not unwind into ggml's C frames.
    let _ =
        std::panic::catch_unwind(|| tracing::error!(target: "ggml", "gave up: {}", last_words().unwrap_or_default()));
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    const CHILD: &str = "SCUMBLE_TEST_ABORT";

    #[test]
    fn a_process_outlives_an_abort() {
        if std::env::var_os(CHILD).is_some() {
            return outlive();
        }
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["abort::tests::a_process_outlives_an_abort", "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success(), "{}: {said}", child.status);
        assert!(said.contains("lives on after: ") && said.contains("tensor buffer not set"), "{said}");
    }

    /// In the child: has ggml abort on a thread of its own, and goes on.
    fn outlive() {
        install();
        install();
        let backend = crate::Backend::cpu(1).unwrap();
        assert_eq!(last_words(), None);
        std::thread::spawn(|| {
            let mut contexts = crate::context::Contexts::default();
            let tensor = contexts.tensor(crate::Dtype::F32, [1; 4]).unwrap();
            // SAFETY: violates ggml's precondition that the tensor has memory, which is the point.
            unsafe { sys::ggml_backend_tensor_set(tensor.as_ptr(), [0u8; 4].as_ptr().cast(), 0, 4) };
            unreachable!("ggml went on");
        });
        let begun = Instant::now();
        while last_words().is_none() && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
        println!("lives on after: {}", last_words().unwrap());
        // Outside of a running graph nothing else is hurt.
        let builder = crate::Builder::new(&backend).unwrap();
        let (x, x_slot) = builder.input(crate::Dtype::F32, [2, 1, 1, 1]);
        let y_slot = builder.output(x.scale(3.0, 0.0));
        let mut graph = builder.build(&backend, usize::MAX).unwrap();
        graph.write(x_slot, &[1.0, 2.0]).unwrap();
        graph.compute(&backend, &|| false).unwrap();
        assert_eq!(graph.read(y_slot).unwrap(), [3.0, 6.0]);
    }
}
