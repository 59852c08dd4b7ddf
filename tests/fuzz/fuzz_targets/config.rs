//! A network's `config.json`: every getter on every key.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use scumble_core::weights::Config;

fuzz_target!(|text: &str| {
    let Ok(config) = Config::parse(Path::new("fuzzed"), text) else { return };
    for key in config.as_object().into_iter().flat_map(|members| members.keys()) {
        let _ = (config.usize(key), config.usizes(key), config.bool(key));
        let _ = (config.f64(key), config.f64s(key), config.str(key), config.strs(key));
    }
});
