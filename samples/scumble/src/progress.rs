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
    bar: ProgressBar,
    stage: Option<Stage>,
    preview: Option<PathBuf>,
    dump: Option<Dump>,
}

impl Watcher {
    pub(crate) fn new(interrupt: Interrupt, preview: Option<PathBuf>, dump: Option<Dump>) -> Self {
        // indicatif draws nothing where standard error is no terminal.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        Self { interrupt, bar, stage: None, preview, dump }
    }

    /// Takes the bar away and gives the collected numbers back.
    pub(crate) fn finish(self) -> Option<Dump> {
        self.bar.finish_and_clear();
        self.dump
    }
}

impl Observer for Watcher {
    fn stop(&self) -> bool {
        self.interrupt.is_set()
    }

    fn progress(&mut self, progress: Progress) {
        if self.stage != Some(progress.stage) {
            self.stage = Some(progress.stage);
            let counts = match progress.stage {
                Stage::Loading => "{bytes}/{total_bytes}",
                _ => "{pos}/{len}",
            };
            let template = format!("{{msg:>9}} {{wide_bar}} {counts} {{eta}} left");
            self.bar.reset();
            // The template is ours; a fault in it would only cost its looks.
            if let Ok(style) = ProgressStyle::with_template(&template) {
                self.bar.set_style(style);
            }
            self.bar.set_message(progress.stage.name());
        }
        self.bar.set_length(progress.of);
        self.bar.set_position(progress.done);
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
