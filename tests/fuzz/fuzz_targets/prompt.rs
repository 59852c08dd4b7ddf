//! The weighting syntax of prompts: whatever is typed, every weight is a number.

#![no_main]

use libfuzzer_sys::fuzz_target;
use scumble_core::text::weighting;

fuzz_target!(|text: &str| {
    for span in weighting::parse(text) {
        assert!(span.weight.is_finite());
    }
});
