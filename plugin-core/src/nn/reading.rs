//! Weights from their files into place, on several threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use ggml::Weight;

use super::LoadControl;
use crate::error::{Error, Result};
use crate::weights::{Entry, ReadControl, Target};

/// How long the caller waits for news before it is asked again whether to stop.
const PATIENCE: Duration = Duration::from_millis(10);

/// A weight, and what it is read from.
pub(super) type Read = (Entry, Target, Weight);

/// What a reader tells.
enum News {
    /// So many bytes of the files were read.
    Bytes(u64),
    Failed(Error),
}

/// Reads all of `reads` on `threads` threads, which convert and pack as they go. The calling thread watches: it
/// alone asks and tells `control`.
///
/// # Errors
/// [`Error::Cancelled`], and the first that a reader met. No reader is at work any more then.
pub(super) fn read_all(reads: &[Read], threads: usize, control: &mut LoadControl<'_>) -> Result<()> {
    let work = Work { reads, next: AtomicUsize::new(0), ended: AtomicBool::new(false) };
    let (sender, news) = mpsc::channel();
    thread::scope(|scope| {
        for i in 0..threads.clamp(1, reads.len().max(1)) {
            let (work, sender) = (&work, sender.clone());
            let started = thread::Builder::new().name(format!("scumble-load-{i}")).spawn_scoped(scope, move || {
                if let Err(error) = work.read(&sender) {
                    // Told before the others end, so that theirs is not the first error. Nobody listens any more
                    // when the caller has left.
                    let _ = sender.send(News::Failed(error));
                    work.ended.store(true, Ordering::Relaxed);
                }
            });
            // One is enough; fewer than asked for are only slower.
            if let (0, Err(error)) = (i, started) {
                return Err(Error::Internal(format!("a thread could not be started: {error}")));
            }
        }
        drop(sender);
        let watched = watch(news, reads, control);
        work.ended.store(true, Ordering::Relaxed);
        watched
    })
}

/// Passes news on until the last reader has left, or something ends it before.
fn watch(news: Receiver<News>, reads: &[Read], control: &mut LoadControl<'_>) -> Result<()> {
    let total = reads.iter().map(|(entry, ..)| entry.bytes()).sum();
    let mut done = 0;
    loop {
        if (control.stop)() {
            return Err(Error::Cancelled);
        }
        match news.recv_timeout(PATIENCE) {
            Ok(News::Bytes(bytes)) => {
                done += bytes;
                (control.progress)(done, total);
            }
            Ok(News::Failed(error)) => return Err(error),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

struct Work<'a> {
    reads: &'a [Read],
    next: AtomicUsize,
    ended: AtomicBool,
}

impl Work<'_> {
    /// Takes one weight after another until there are none, or until somebody ended it.
    fn read(&self, sender: &Sender<News>) -> Result<()> {
        while let Some((entry, target, weight)) = self.take() {
            let cancel = || self.ended.load(Ordering::Relaxed);
            let mut progress = |bytes| {
                // The caller has left, in a panic perhaps.
                if sender.send(News::Bytes(bytes)).is_err() {
                    self.ended.store(true, Ordering::Relaxed);
                }
            };
            let mut control = ReadControl { cancel: &cancel, progress: &mut progress };
            entry.read(*target, &mut control, &mut |offset, data| {
                weight.write(offset as usize, data).map_err(Error::from)
            })?;
        }
        Ok(())
    }

    fn take(&self) -> Option<&Read> {
        let ended = self.ended.load(Ordering::Relaxed);
        self.reads.get(self.next.fetch_add(1, Ordering::Relaxed)).filter(|_| !ended)
    }
}
