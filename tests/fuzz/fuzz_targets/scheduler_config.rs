//! `scheduler_config.json`, down to the defaults for sampling.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use scumble_core::sampling::from_scheduler_config;
use scumble_core::weights::Config;

fuzz_target!(|text: &str| {
    let Ok(config) = Config::parse(Path::new("fuzzed"), text) else { return };
    let _ = from_scheduler_config(&config);
});
