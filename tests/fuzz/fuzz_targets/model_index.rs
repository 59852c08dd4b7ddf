//! A diffusers folder's `model_index.json`.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use scumble_core::weights::ModelIndex;

fuzz_target!(|text: &str| {
    let _ = ModelIndex::parse(Path::new("fuzzed"), text);
});
