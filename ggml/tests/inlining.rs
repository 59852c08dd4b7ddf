//! The kernels' instructions are where they belong, and not behind calls.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::hint::black_box;

use ggml::{Picture, Tensor};
use object::{Object, ObjectSymbol};

/// A function that is not inlined into one that is compiled for an instruction set can use it only by
/// calling a function for each instruction, twenty times as slowly. Such functions have names.
#[test]
fn no_vector_instruction_is_a_function() {
    // What a linker sees used, it keeps.
    let maps = [Tensor::linear as *const (), Picture::convolve as *const (), Tensor::attention as *const ()];
    let others = [Tensor::geglu as *const (), Tensor::activate as *const (), Tensor::layer_norm as *const ()];
    black_box((maps, others, Picture::group_norm as *const ()));

    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let file = object::File::parse(program.as_slice()).unwrap();
    let names: Vec<_> = file.symbols().filter_map(|symbol| symbol.name().ok()).collect();
    let kernels = names.iter().filter(|name| name.contains("kernels") && name.contains("avx512")).count();
    assert!(kernels > 5, "the kernels are not there: {kernels}");
    let called: Vec<_> = names.iter().filter(|name| name.contains("core_arch") && name.contains("_ps")).collect();
    assert!(called.is_empty(), "{called:?}");
}
