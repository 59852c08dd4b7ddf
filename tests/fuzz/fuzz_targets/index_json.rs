//! The index of a model in several files: no shard may lie outside its folder.

#![no_main]

use std::path::{Component, Path};

use libfuzzer_sys::fuzz_target;
use scumble_core::weights::ShardIndex;

fuzz_target!(|text: &str| {
    let Ok(index) = ShardIndex::parse(Path::new("fuzzed"), text) else { return };
    for shard in index.shards.keys() {
        assert!(Path::new(shard).components().all(|part| matches!(part, Component::Normal(_))));
    }
});
