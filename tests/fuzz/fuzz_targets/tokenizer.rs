//! A tokenizer from a `tokenizer.json`, and a text through it.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use scumble_core::text::Tokenizer;

fuzz_target!(|text: &str| {
    let Ok(tokenizer) = Tokenizer::from_json(text, None, Path::new("fuzzed")) else { return };
    let _ = tokenizer.encode(text);
});
