//! What a caller can watch of a run, and how it stops one.

use crate::image::FloatImage;

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Weights are read; counted in bytes.
    Loading,
    /// The prompt and the initial picture are encoded.
    Encoding,
    /// The denoiser runs; counted in steps.
    Denoising,
    /// Pictures are decoded; counted in pictures, or tiles of large ones.
    Decoding,
}

impl Stage {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Encoding => "encoding",
            Self::Denoising => "denoising",
            Self::Decoding => "decoding",
        }
    }
}

/// How far a stage has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The stage.
    pub stage: Stage,
    /// What is done of it.
    pub done: u64,
    /// What there is to do.
    pub of: u64,
}

impl Progress {
    pub(crate) fn of(stage: Stage, done: usize, of: usize) -> Self {
        Self { stage, done: done as u64, of: of as u64 }
    }
}

/// Numbers from inside a run, for comparing it with another program's.
#[derive(Debug)]
pub enum Trace<'a> {
    /// The text's states, each `[1, L, width]`.
    Text {
        /// Width of a state.
        width: usize,
        /// Of the prompt.
        positive: &'a [f32],
        /// Of the negative prompt.
        negative: &'a [f32],
    },
    /// The starting noise, `shape` = `[N, C, h, w]`, before the schedule scales it.
    Noise {
        /// Sizes.
        shape: [usize; 4],
        /// Values.
        values: &'a [f32],
    },
    /// The latents after a step, `shape` = `[N, C, h, w]`, in the sampler's own scale.
    Latents {
        /// The step, from 0.
        step: usize,
        /// Sizes.
        shape: [usize; 4],
        /// Values.
        values: &'a [f32],
    },
}

/// Watches a load or a run. All calls come on the thread that runs it.
pub trait Observer {
    /// Asked between the nodes of a graph and between chunks of a file; `true` cancels.
    fn stop(&self) -> bool {
        false
    }

    /// Told how far a stage has come.
    fn progress(&mut self, progress: Progress) {
        let _ = progress;
    }

    /// Given a rough picture of the first latents, after the steps that the request named.
    fn preview(&mut self, step: usize, picture: FloatImage) {
        let _ = (step, picture);
    }

    /// Given numbers from inside the run.
    fn trace(&mut self, trace: Trace<'_>) {
        let _ = trace;
    }
}

/// An observer that neither watches nor stops.
pub struct Quiet;

impl Observer for Quiet {}
