//! What holds for any run: the same bytes again, cancelling, watching, refusing.

use std::cell::Cell;

use ggml::Backend;
use scumble_core::Error;
use scumble_core::image::FloatImage;
use scumble_core::pipeline::{Files, Observer, Pipeline, Progress, Quiet, Stage};
use scumble_core::request::Request;
use scumble_core::sampling::SamplerKind;
use scumble_core::sampling::rng::RngKind;
use scumble_tests::{Recorder, derived};

fn pipeline(threads: usize) -> Pipeline {
    let files = Files::open(&derived("sd1/f32")).unwrap();
    Pipeline::load(&files, Backend::cpu(threads).unwrap(), &mut Quiet).unwrap()
}

fn request() -> Request {
    Request {
        prompt: "mossy red brick wall".into(),
        width_px: 56,
        height_px: 40,
        steps: 2,
        seed: 3,
        ..Request::default()
    }
}

fn bytes(pipeline: &mut Pipeline, request: &Request) -> Vec<Vec<f32>> {
    let pictures = pipeline.generate(request, &mut Quiet).unwrap();
    pictures.into_iter().map(FloatImage::into_data).collect()
}

#[test]
fn ten_runs_and_one_two_or_three_threads_give_the_same_bytes() {
    let expected = bytes(&mut pipeline(1), &request());
    let mut two = pipeline(2);
    for run in 0..10 {
        assert!(bytes(&mut two, &request()) == expected, "run {run}");
    }
    assert!(bytes(&mut pipeline(3), &request()) == expected);
}

#[test]
fn seeds_differ_and_a_philox_batch_counts_up() {
    let mut pipeline = pipeline(1);
    let batch = bytes(&mut pipeline, &Request { images: 2, ..request() });
    let second = bytes(&mut pipeline, &Request { seed: 4, ..request() });
    assert!(batch[0] != batch[1]);
    assert!(batch[1] == second[0], "picture i has the seed + i");
}

#[test]
fn at_scale_one_the_negative_prompt_has_no_say() {
    let mut pipeline = pipeline(1);
    let plain = Request { guidance: 1.0, ..request() };
    let other = Request { negative: "something else".into(), ..plain.clone() };
    assert!(bytes(&mut pipeline, &plain) == bytes(&mut pipeline, &other));
    let guided = Request { guidance: 7.5, ..plain };
    let guided_other = Request { guidance: 7.5, ..other };
    assert!(bytes(&mut pipeline, &guided) != bytes(&mut pipeline, &guided_other));
}

#[test]
fn any_size_from_sixteen_is_padded_and_cropped() {
    let mut pipeline = pipeline(1);
    for (width_px, height_px) in [(16, 16), (17, 31), (50, 37), (64, 24)] {
        let request = Request { width_px, height_px, steps: 1, ..request() };
        let picture = pipeline.generate(&request, &mut Quiet).unwrap().remove(0);
        assert_eq!((picture.width() as usize, picture.height() as usize), (width_px, height_px));
    }
}

/// Stops at its `left`-th question.
struct StopsAfter {
    left: Cell<usize>,
    asked: Cell<usize>,
}

impl StopsAfter {
    fn new(left: usize) -> Self {
        Self { left: Cell::new(left), asked: Cell::new(0) }
    }
}

impl Observer for StopsAfter {
    fn stop(&self) -> bool {
        self.asked.set(self.asked.get() + 1);
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left == 0
    }
}

#[test]
fn cancelling_anywhere_is_told_apart_and_leaves_the_pipeline_usable() {
    let mut pipeline = pipeline(1);
    let expected = bytes(&mut pipeline, &request());
    let all = StopsAfter::new(usize::MAX);
    let mut counting = all;
    pipeline.generate(&request(), &mut counting).unwrap();
    let questions = counting.asked.get();
    assert!(questions > 10, "asked at each stage and step: {questions}");
    for eighth in 0..8 {
        let mut observer = StopsAfter::new(questions * eighth / 8);
        let error = pipeline.generate(&request(), &mut observer).expect_err("cancelled");
        assert!(matches!(error, Error::Cancelled), "{error}");
    }
    assert!(bytes(&mut pipeline, &request()) == expected);
}

#[test]
fn loading_can_be_cancelled() {
    let files = Files::open(&derived("sd1/f32")).unwrap();
    let result = Pipeline::load(&files, Backend::cpu(1).unwrap(), &mut StopsAfter::new(5));
    assert!(matches!(result.err(), Some(Error::Cancelled)));
}

/// Keeps the order of what it is told.
#[derive(Default)]
struct Log {
    progress: Vec<Progress>,
    previews: Vec<(usize, u32, u32)>,
}

impl Observer for Log {
    fn progress(&mut self, progress: Progress) {
        self.progress.push(progress);
    }

    fn preview(&mut self, step: usize, picture: FloatImage) {
        assert!(picture.data().iter().all(|value| (0.0..=1.0).contains(value)));
        self.previews.push((step, picture.width(), picture.height()));
    }
}

#[test]
fn progress_goes_through_the_stages_and_previews_come_when_asked() {
    let files = Files::open(&derived("sd1/f32")).unwrap();
    let mut log = Log::default();
    let mut pipeline = Pipeline::load(&files, Backend::cpu(1).unwrap(), &mut log).unwrap();
    let request = Request { steps: 4, preview_every: 1, ..request() };
    pipeline.generate(&request, &mut log).unwrap();
    let mut stages: Vec<Stage> = log.progress.iter().map(|progress| progress.stage).collect();
    stages.dedup();
    assert_eq!(stages, [Stage::Loading, Stage::Encoding, Stage::Denoising, Stage::Decoding]);
    for pair in log.progress.windows(2) {
        assert!(pair[0].stage != pair[1].stage || pair[0].done <= pair[1].done, "{pair:?}");
    }
    assert!(log.progress.iter().all(|progress| progress.done <= progress.of));
    assert_eq!(log.previews, [(1, 7, 5), (2, 7, 5), (3, 7, 5)]);
}

#[test]
fn given_noise_takes_the_place_of_the_generator() {
    let mut pipeline = pipeline(1);
    let mut recorder = Recorder::default();
    let expected = pipeline.generate(&request(), &mut recorder).unwrap();
    let given = Request { noise: Some(recorder.noise), seed: 99, ..request() };
    assert!(pipeline.generate(&given, &mut Quiet).unwrap() == expected);
    let short = Request { noise: Some(vec![0.0; 3]), ..request() };
    assert!(matches!(pipeline.generate(&short, &mut Quiet), Err(Error::InvalidRequest { field: "noise", .. })));
}

#[test]
fn every_sampler_makes_a_picture_with_every_generator() {
    let mut pipeline = pipeline(1);
    for sampler in SamplerKind::ALL {
        for rng in RngKind::ALL {
            let request = Request { sampler: Some(sampler), rng, width_px: 16, height_px: 16, steps: 3, ..request() };
            let picture = pipeline.generate(&request, &mut Quiet).unwrap_or_else(|error| panic!("{sampler}: {error}"));
            assert!(picture[0].data().iter().all(|value| value.is_finite()), "{sampler}");
        }
    }
}
