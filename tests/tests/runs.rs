//! What holds for any run: the same bytes again, cancelling, watching, refusing.

use std::cell::Cell;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

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
    // Asked at the start of the text, of each step and of decoding, and how often in between is a matter of time.
    let certain = request().steps + 2;
    let mut observer = StopsAfter::new(usize::MAX);
    pipeline.generate(&request(), &mut observer).unwrap();
    let asked = observer.asked.get();
    assert!(asked >= certain, "asked {asked} times");
    for question in 0..certain {
        let mut observer = StopsAfter::new(question);
        let error = pipeline.generate(&request(), &mut observer).expect_err("cancelled");
        assert!(matches!(error, Error::Cancelled), "{error}");
        assert_eq!(observer.asked.get(), question + 1, "nobody is asked again who said stop");
    }
    assert!(bytes(&mut pipeline, &request()) == expected);
}

#[test]
fn loading_can_be_cancelled() {
    for threads in [1, 3] {
        for question in [0, 1, 5] {
            let files = Files::open(&derived("sd1/f32")).unwrap();
            let mut observer = StopsAfter::new(question);
            let result = Pipeline::load(&files, Backend::cpu(threads).unwrap(), &mut observer);
            assert!(matches!(result.err(), Some(Error::Cancelled)));
            assert_eq!(observer.asked.get(), question + 1);
        }
    }
}

#[test]
fn loading_on_several_threads_tells_of_every_byte_once() {
    let files = Files::open(&derived("sd1/f32")).unwrap();
    let told = |threads| {
        let mut log = Log::default();
        Pipeline::load(&files, Backend::cpu(threads).unwrap(), &mut log).unwrap();
        log.progress
    };
    let alone = told(1).pop().expect("the last");
    assert_eq!(alone.done, alone.of);
    let several = told(4);
    assert!(several.is_sorted_by_key(|progress| progress.done));
    assert_eq!(several.last(), Some(&alone));
}

#[test]
fn a_file_that_ends_early_meanwhile_is_an_error_on_several_threads() {
    let place = tempfile::tempdir().unwrap();
    let model = place.path().join("model.safetensors");
    fs::copy(derived("sd1/original-f32.safetensors"), &model).unwrap();
    let files = Files::open(&model).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&model).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    let result = Pipeline::load(&files, Backend::cpu(4).unwrap(), &mut Quiet);
    let error = result.err().expect("half of the file is gone");
    assert!(error.to_string().contains("model.safetensors"), "{error}");
}

/// Panics when it is told of progress.
struct Panics;

impl Observer for Panics {
    fn progress(&mut self, _: Progress) {
        panic!("the observer's own");
    }
}

#[test]
fn an_observer_that_panics_leaves_no_reader_behind() {
    let files = Files::open(&derived("sd1/f32")).unwrap();
    let backend = || Backend::cpu(3).unwrap();
    let load = AssertUnwindSafe(|| Pipeline::load(&files, backend(), &mut Panics));
    let panic = catch_unwind(load).err().expect("goes through to the caller");
    assert_eq!(panic.downcast_ref(), Some(&"the observer's own"));
    let mut pipeline = Pipeline::load(&files, backend(), &mut Quiet).unwrap();
    pipeline.generate(&request(), &mut Quiet).unwrap();
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
