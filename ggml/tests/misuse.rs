//! Whatever is asked for wrongly is an error, never an abort: one `abort()` would end this program.

mod naive;

use ggml::Dtype::{F16, F32, I32};
use ggml::kernels::Isa;
use ggml::{Activation, Backend, Builder, Dtype, Error, Picture, Shape, Storage, Tensor};
use naive::Array;

/// What `make` makes of inputs of these types and shapes is refused when the graph is built.
#[track_caller]
fn refused(what: &str, inputs: &[(Dtype, Shape)], make: impl for<'g> Fn(&[Tensor<'g>]) -> Tensor<'g>) -> Error {
    let backend = Backend::cpu(1).unwrap();
    let builder = Builder::new(&backend).unwrap();
    let tensors: Vec<_> = inputs.iter().map(|&(dtype, shape)| builder.input(dtype, shape).0).collect();
    builder.output(make(&tensors));
    match builder.build(&backend, usize::MAX) {
        Err(error) => error,
        Ok(_) => panic!("{what} of {inputs:?} was let through"),
    }
}

/// An op of one operand, by name.
type Map = (&'static str, for<'g> fn(Tensor<'g>) -> Tensor<'g>);

const MAPS: [Map; 13] = [
    ("scale", |x| x.scale(2.0, 0.0)),
    ("silu", |x| x.activate(Activation::Silu)),
    ("relu", |x| x.activate(Activation::Relu)),
    ("tanh", |x| x.tanh()),
    ("gelu", |x| x.activate(Activation::Gelu)),
    ("quick_gelu", |x| x.activate(Activation::QuickGelu)),
    ("geglu", |x| x.geglu()),
    ("layer_norm", |x| x.layer_norm(x, x, 1e-5)),
    ("nearest", |x| x.nearest(20, 20)),
    ("pad", |x| x.pad(1, 1)),
    ("conv_2d", |x| x.conv_2d(x, 1, 1)),
    ("add", |x| x.add(x)),
    ("concat", |x| x.concat(x, 0)),
];

#[test]
fn wrong_types() {
    for (name, op) in MAPS {
        for dtype in [F16, I32] {
            let error = refused(name, &[(dtype, [4, 4, 4, 4])], |x| op(x[0]));
            assert!(matches!(error, Error::Type { .. }), "{name}: {error}");
        }
    }
    let square = [4, 4, 1, 1];
    refused("mul", &[(F32, square), (F16, square)], |x| x[0].mul(x[1]));
    refused("matmul", &[(I32, square), (F32, square)], |x| x[0].matmul(x[1]));
    refused("matmul", &[(F32, square), (F16, square)], |x| x[0].matmul(x[1]));
    refused("matmul", &[(F32, square), (I32, square)], |x| x[0].matmul(x[1]));
    refused("conv_2d", &[(F32, square), (I32, square)], |x| x[0].conv_2d(x[1], 1, 0));
    refused("cast", &[(F32, square)], |x| x[0].cast(I32));
    refused("cast", &[(I32, square)], |x| x[0].cast(F32));
    refused("concat", &[(F32, square), (I32, square)], |x| x[0].concat(x[1], 0));
    refused("rows", &[(F32, square), (F32, [3, 1, 1, 1])], |x| x[0].rows(x[1]));
    refused("rows", &[(I32, square), (I32, [3, 1, 1, 1])], |x| x[0].rows(x[1]));
    for wrong in 0..4 {
        for dtype in [F16, I32] {
            let mut inputs = [(F32, square); 4];
            inputs[wrong].0 = dtype;
            refused("attention", &inputs, |x| x[0].attention(x[1], x[2], Some(x[3]), 1, 1.0));
        }
    }
}

#[test]
fn operands_that_are_not_contiguous() {
    for (name, op) in MAPS.into_iter().filter(|(name, _)| !["concat", "add"].contains(name)) {
        refused(name, &[(F32, [4, 6, 4, 4])], |x| op(x[0].permute([1, 0, 2, 3])));
        refused(name, &[(F32, [4, 6, 4, 4])], |x| op(x[0].permute([0, 2, 1, 3])));
        refused(name, &[(F32, [8, 6, 4, 4])], |x| op(x[0].narrow(0, 0, 4)));
    }
    let square = (F32, [4, 4, 1, 1]);
    refused("add", &[square, square], |x| x[0].permute([1, 0, 2, 3]).add(x[1]));
    refused("mul", &[square, square], |x| x[0].permute([1, 0, 2, 3]).mul(x[1]));
    refused("matmul", &[square, square], |x| x[0].permute([1, 0, 2, 3]).matmul(x[1]));
    refused("matmul", &[square, square], |x| x[0].matmul(x[1].permute([1, 0, 2, 3])));
    refused("conv_2d", &[square, square], |x| x[0].conv_2d(x[1].permute([1, 0, 2, 3]), 1, 0));
    refused("reshape", &[square], |x| x[0].permute([1, 0, 2, 3]).reshape([16, 1, 1, 1]));
    refused("narrow", &[square], |x| x[0].permute([1, 0, 2, 3]).narrow(0, 0, 1));
    refused("cast", &[square], |x| x[0].permute([1, 0, 2, 3]).cast(F16));
    refused("rows", &[square, (I32, [4, 1, 1, 1])], |x| x[0].permute([1, 0, 2, 3]).rows(x[1]));
    for wrong in 0..4 {
        refused("attention", &[square; 4], |x| {
            let mut x: Vec<_> = x.to_vec();
            x[wrong] = x[wrong].permute([1, 0, 2, 3]);
            x[0].attention(x[1], x[2], Some(x[3]), 1, 1.0)
        });
    }
}

#[test]
fn shapes_that_do_not_fit() {
    let pairs = |a: Shape, b: Shape| [(F32, a), (F32, b)];
    let error = refused("add", &pairs([4, 3, 2, 1], [3, 3, 2, 1]), |x| x[0].add(x[1]));
    assert_eq!(error, Error::Shapes { op: "add", left: [4, 3, 2, 1], right: [3, 3, 2, 1] });
    assert!(error.to_string().contains("[4, 3, 2, 1] and [3, 3, 2, 1]"), "{error}");
    refused("add", &pairs([1, 1, 1, 1], [1, 1, 2, 1]), |x| x[0].add(x[1]));
    refused("mul", &pairs([4, 4, 1, 1], [4, 4, 1, 2]), |x| x[0].mul(x[1]));
    refused("geglu", &[(F32, [3, 2, 1, 1])], |x| x[0].geglu());
    for epsilon in [-1.0, f32::NAN, f32::NEG_INFINITY] {
        refused("norm", &[(F32, [4, 1, 1, 1])], |x| x[0].layer_norm(x[0], x[0], epsilon));
    }
    refused("norm", &pairs([4, 3, 1, 1], [3, 1, 1, 1]), |x| x[0].layer_norm(x[1], x[1], 1e-5));
    for kernels in [None, Some(Isa::BASELINE)] {
        let backend = Backend::cpu_with(1, kernels).unwrap();
        let vector = naive::weight(&backend, F32, &Array::from_fn([4, 1, 1, 1], |[i, ..]| i as f64));
        let build = |channels, groups, epsilon| {
            let builder = Builder::new(&backend).unwrap();
            let x = Picture::new(builder.input(F32, [4, 4, channels, 1]).0);
            builder.output(x.group_norm(&vector, &vector, groups, epsilon, false).planes());
            builder.build(&backend, usize::MAX).map(drop)
        };
        build(4, 2, 0.0).unwrap();
        assert!([-1.0, f32::NAN, f32::NEG_INFINITY].into_iter().all(|epsilon| build(4, 2, epsilon).is_err()));
        assert!([0, 3, 5, usize::MAX, (1 << 32) + 1].into_iter().all(|groups| build(4, groups, 1e-5).is_err()));
        assert!(build(8, 2, 1e-5).is_err(), "a vector of the wrong length");
    }
    refused("matmul", &pairs([4, 3, 1, 1], [3, 4, 1, 1]), |x| x[0].matmul(x[1]));
    refused("matmul", &pairs([4, 3, 2, 1], [4, 3, 3, 1]), |x| x[0].matmul(x[1]));
    refused("matmul", &pairs([4, 3, 1, 3], [4, 3, 1, 2]), |x| x[0].matmul(x[1]));
    refused("matmul", &pairs([4, 3, 2, 1], [4, 3, 1, 1]), |x| x[0].matmul(x[1]));
    refused("conv_2d", &pairs([8, 8, 3, 1], [3, 3, 4, 1]), |x| x[0].conv_2d(x[1], 1, 1));
    refused("conv_2d", &pairs([2, 8, 3, 1], [3, 3, 3, 1]), |x| x[0].conv_2d(x[1], 1, 0));
    for (stride, padding) in [(0, 1), (1 << 32, 1), (usize::MAX, 0), (1, usize::MAX), (1, 1 << 31), (1, 1 << 62)] {
        refused("conv_2d", &pairs([8, 8, 3, 1], [3, 3, 3, 1]), |x| x[0].conv_2d(x[1], stride, padding));
    }
    for (width, height) in [(3, 8), (8, 3), (0, 8), (usize::MAX, 8), (8, 1 << 32), (1 << 24, 8)] {
        refused("nearest", &[(F32, [4, 4, 1, 1])], |x| x[0].nearest(width, height));
    }
    // 14 columns to 16: ggml's rounding picks another element than PyTorch's.
    refused("nearest", &[(F32, [14, 1, 1, 1])], |x| x[0].nearest(16, 1));
    for (right, bottom) in [(usize::MAX, 0), (0, usize::MAX), (1 << 32, 0), (1 << 31, 1 << 31)] {
        refused("pad", &[(F32, [4, 4, 1, 1])], |x| x[0].pad(right, bottom));
    }
    for dimension in [1, 2, 3, 4, usize::MAX, 1 << 32] {
        refused("concat", &pairs([4, 3, 2, 1], [5, 3, 2, 1]), |x| x[0].concat(x[1], dimension));
    }
    for shape in [[5, 5, 1, 1], [0, 24, 1, 1], [usize::MAX; 4], [1 << 32, 1 << 32, 1, 1], [24, 1, 1, 0]] {
        refused("reshape", &[(F32, [4, 6, 1, 1])], |x| x[0].reshape(shape));
    }
    for places in [[0, 0, 1, 2], [0, 1, 2, 4], [usize::MAX, 1, 2, 3], [1, 1, 1, 1], [(1 << 32), 1, 2, 3]] {
        refused("permute", &[(F32, [4, 6, 1, 1])], |x| x[0].permute(places));
    }
    for (dimension, start, length) in
        [(0, 4, 1), (0, 0, 5), (0, 0, 0), (4, 0, 1), (0, usize::MAX, 2), (usize::MAX, 0, 1)]
    {
        refused("narrow", &[(F32, [4, 6, 1, 1])], |x| x[0].narrow(dimension, start, length));
    }
}

#[test]
fn attention_that_does_not_fit() {
    let fits: [Shape; 4] = [[8, 5, 3, 1], [8, 7, 3, 1], [8, 7, 3, 1], [7, 5, 1, 1]];
    for operand in 0..4 {
        for dimension in 0..4 {
            let mut inputs = fits.map(|shape| (F32, shape));
            inputs[operand].1[dimension] += 1;
            refused("attention", &inputs, |x| x[0].attention(x[1], x[2], Some(x[3]), 2, 1.0));
        }
    }
    for heads in [0, 3, 16, usize::MAX] {
        refused("attention", &fits.map(|shape| (F32, shape)), |x| x[0].attention(x[1], x[2], Some(x[3]), heads, 1.0));
    }
}

#[test]
fn what_follows_an_error_keeps_the_first() {
    let error = refused("a chain", &[(F32, [4, 4, 1, 1])], |x| {
        let bad = x[0].reshape([3, 3, 1, 1]);
        let wide = bad.permute([1, 0, 2, 3]).contiguous().narrow(0, 5, 9).reshape([0; 4]).cast(I32).nearest(0, 0);
        let mixed = wide.attention(bad, bad, None, 1, 1.0).attention(x[0], x[0], Some(bad), 1, 1.0).concat(x[0], 9);
        x[0].add(x[0].matmul(mixed)).conv_2d(mixed, 0, 0).rows(bad).layer_norm(bad, bad, -1.0).pad(usize::MAX, 0)
    });
    assert_eq!(error, Error::Shapes { op: "reshape", left: [4, 4, 1, 1], right: [3, 3, 1, 1] });
}

#[test]
fn sizes_that_overflow() {
    for shape in [
        [0, 1, 1, 1],
        [1, 1, 1, 0],
        [usize::MAX, 1, 1, 1],
        [usize::MAX; 4],
        [1 << 16, 1 << 16, 1 << 16, 1 << 16],
        [1 << 31, 1, 1, 1],
        [1 << 32, 1 << 32, 1, 1],
        [1 << 20, 1 << 11, 1, 1],
    ] {
        for dtype in [F32, F16, I32] {
            refused("an input", &[(dtype, shape)], |x| x[0]);
            assert!(Storage::new().add(dtype, shape).is_err());
        }
    }
    // Operands that are small enough, results that are not.
    let long = (F32, [1, 1 << 20, 1, 1]);
    refused("matmul", &[long, long], |x| x[0].matmul(x[1]));
    let row = (F32, [1 << 30, 1, 1, 1]);
    refused("concat", &[row], |x| x[0].concat(x[0], 0));
    refused("pad", &[row], |x| x[0].pad(0, 5));
    refused("nearest", &[(F32, [1 << 20, 1, 1 << 10, 1])], |x| x[0].nearest(1 << 20, 2));
    refused("conv_2d", &[(F32, [1 << 15, 1 << 15, 1, 1]), (F32, [1, 1, 1, 2])], |x| x[0].conv_2d(x[1], 1, 0));
    refused("conv_2d", &[(F32, [8, 8, 1, 1]), (F32, [1, 1, 1, 1])], |x| x[0].conv_2d(x[1], 1, 1 << 20));
    refused("conv_2d", &[(F32, [2000, 2100, 1, 1]), (F32, [2000, 2100, 1, 1])], |x| x[0].conv_2d(x[1], 1, 0));
    let backend = Backend::cpu(1).unwrap();
    let builder = Builder::new(&backend).unwrap();
    let table = builder.input(F32, [1 << 20, 2, 1, 1]).0;
    builder.output(table.rows(builder.indices(1 << 12, 2).0));
    assert!(builder.build(&backend, usize::MAX).is_err());
}

#[test]
fn indices_are_bounded_when_they_are_made_and_when_they_are_written() {
    let backend = Backend::cpu(2).unwrap();
    let build = |count, below, rows| {
        let builder = Builder::new(&backend).unwrap();
        let (at, slot) = builder.indices(count, below);
        let output = builder.output(builder.input(F32, [3, rows, 1, 1]).0.rows(at));
        builder.build(&backend, usize::MAX).map(|graph| (graph, slot, output))
    };
    assert!(build(4, 11, 10).is_err(), "a bound beyond the table");
    let (mut graph, slot, output) = build(4, 10, 10).unwrap();
    // Never written: row 0.
    graph.compute(&backend, &|| false).unwrap();
    assert_eq!(graph.read(output).unwrap().len(), 12);
    for (bad, found) in
        [([0, 1, 2, 10], 10), ([0, -1, 2, 3], -1), ([i32::MAX, 0, 0, 0], i32::MAX), ([i32::MIN, 0, 0, 0], i32::MIN)]
    {
        assert_eq!(graph.write_indices(slot, &bad), Err(Error::Index { found, below: 10 }));
    }
    assert!(graph.write_indices(slot, &[0; 3]).is_err() && graph.write_indices(slot, &[0; 5]).is_err());
    assert!(graph.write(slot, &[0.0; 4]).is_err(), "floats into indices");
    graph.write_indices(slot, &[0, 9, 5, 9]).unwrap();
    graph.compute(&backend, &|| false).unwrap();

    // Integers of unknown size are no indices, through whatever views.
    let square = (F32, [4, 4, 1, 1]);
    refused("rows", &[square, (I32, [4, 1, 1, 1])], |x| x[0].rows(x[1]));
    refused("rows", &[square, (I32, [2, 2, 1, 1])], |x| x[0].rows(x[1].reshape([4, 1, 1, 1]).narrow(0, 0, 2)));
    let weights = Storage::new();
    let numbers = weights.add(I32, [4, 1, 1, 1]).unwrap();
    weights.allocate(&backend).unwrap();
    numbers.write(0, &[0xFF; 16]).unwrap();
    let builder = Builder::new(&backend).unwrap();
    builder.output(builder.input(F32, [4, 4, 1, 1]).0.rows(builder.weight(&numbers)));
    assert!(builder.build(&backend, usize::MAX).is_err());
    // Bounded ones keep their bound through views.
    let builder = Builder::new(&backend).unwrap();
    let (at, slot) = builder.indices(6, 4);
    let some = at.reshape([3, 2, 1, 1]).permute([1, 0, 2, 3]).contiguous().reshape([6, 1, 1, 1]).narrow(0, 2, 3);
    let output = builder.output(builder.input(F32, [1, 4, 1, 1]).0.rows(some));
    let mut graph = builder.build(&backend, usize::MAX).unwrap();
    graph.write_indices(slot, &[0, 1, 2, 3, 3, 3]).unwrap();
    graph.compute(&backend, &|| false).unwrap();
    assert_eq!(graph.read(output).unwrap().len(), 3);
}
