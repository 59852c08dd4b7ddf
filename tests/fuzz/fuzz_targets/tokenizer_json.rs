//! Vocabulary and merges out of a `tokenizer.json`.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use scumble_core::weights::TokenizerFiles;

fuzz_target!(|text: &str| {
    let _ = TokenizerFiles::from_tokenizer_json(Path::new("fuzzed"), text, None);
});
