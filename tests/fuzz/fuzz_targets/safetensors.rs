//! Header, names and conversion of a safetensors file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use scumble_core::weights::Checkpoint;

fuzz_target!(|bytes: &[u8]| {
    let Ok(checkpoint) = Checkpoint::from_shared_bytes("fuzzed", bytes.into()) else { return };
    for (_, tensors) in checkpoint.components() {
        for entry in tensors.entries() {
            assert_eq!(entry.to_f32().unwrap().len(), entry.elements());
        }
    }
});
