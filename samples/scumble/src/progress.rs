//! The progress bar: stage, step and time left, on standard error and only on a terminal.

use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use scumble_core::image::{FloatImage, write_png};
use scumble_core::pipeline::{Observer, Progress, Stage, Trace};

use crate::dump::Dump;
use crate::interrupt::Interrupt;

/// Watches a run for the command line.
pub(crate) struct Watcher {
    interrupt: Interrupt,
    bar: Option<(Stage, ProgressBar)>,
    preview: Option<PathBuf>,
    dump: Option<Dump>,
}

impl Watcher {
    pub(crate) fn new(interrupt: Interrupt, preview: Option<PathBuf>, dump: Option<Dump>) -> Self {
        Self { interrupt, bar: None, preview, dump }
    }

    /// Takes the bar away and gives the collected numbers back.
    pub(crate) fn finish(self) -> Option<Dump> {
        if let Some((_, bar)) = self.bar {
            bar.finish_and_clear();
        }
        self.dump
    }
}

/// A bar for one stage, so that the time left is reckoned from that stage's own pace.
fn bar(stage: Stage, of: u64) -> ProgressBar {
    let counts = match stage {
        Stage::Loading => "{bytes}/{total_bytes}",
        _ => "{pos}/{len}",
    };
    // indicatif draws nothing where standard error is no terminal.
    let bar = ProgressBar::with_draw_target(Some(of), ProgressDrawTarget::stderr()).with_message(stage.name());
    // The template is ours; a fault in it would only cost its looks.
    match ProgressStyle::with_template(&format!("{{msg:>9}} {{wide_bar}} {counts} {{eta}} left")) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

impl Observer for Watcher {
    fn stop(&self) -> bool {
        self.interrupt.is_set()
    }

    fn progress(&mut self, progress: Progress) {
        let is_new = self.bar.as_ref().is_none_or(|(stage, _)| *stage != progress.stage);
        if is_new && let Some((_, last)) = self.bar.replace((progress.stage, bar(progress.stage, progress.of))) {
            last.finish_and_clear();
        }
        if let Some((_, bar)) = &self.bar {
            bar.set_position(progress.done);
        }
    }

    fn preview(&mut self, _step: usize, picture: FloatImage) {
        // A preview that can't be written is no reason to lose the picture.
        if let Some(path) = &self.preview {
            let _ = write_png(path, &picture.to_image(), &[]);
        }
    }

    fn trace(&mut self, trace: Trace<'_>) {
        if let Some(dump) = &mut self.dump {
            dump.take(trace);
        }
    }
}
