//! Matrix products, convolutions and attention, each against its definition.

mod naive;

use ggml::{Backend, Dtype, Shape};
use naive::{Array, Random, close, everywhere, run, run_on};

/// Relative L2 distance for sums of up to some thousand products in single precision.
const SUMS: f64 = 1e-6;

#[test]
fn matrix_products() {
    let mut random = Random(1);
    let cases: [(Shape, Shape); 14] = [
        ([1, 1, 1, 1], [1, 1, 1, 1]),
        ([3, 7, 1, 1], [3, 5, 1, 1]),
        ([31, 33, 1, 1], [31, 1, 1, 1]),
        ([33, 1, 1, 1], [33, 31, 1, 1]),
        ([65, 16, 1, 1], [65, 3, 1, 1]),
        ([64, 64, 1, 1], [64, 65, 1, 1]),
        ([7, 4, 1, 1], [7, 2, 6, 4]),
        ([7, 4, 3, 2], [7, 5, 6, 4]),
        ([31, 12, 6, 1], [31, 5, 6, 4]),
        ([320, 77, 1, 1], [320, 96, 1, 1]),
        ([1280, 33, 1, 1], [1280, 17, 1, 2]),
        ([1, 130, 1, 1], [1, 70, 1, 1]),
        ([2880, 8, 1, 1], [2880, 9, 1, 1]),
        ([11520, 4, 1, 1], [11520, 3, 1, 1]),
    ];
    for (left, right) in cases {
        let (a, b) = (random.array(left, 1.0), random.array(right, 3.0));
        close("matmul", &run(&[&a, &b], |t| t[0].matmul(t[1])), &naive::matmul(&a, &b), SUMS);
    }
    // Large and small numbers side by side stay what they are.
    let mut a = random.array([64, 8, 1, 1], 1e15);
    let b = random.array([64, 8, 1, 1], 1e15);
    a.data[..64].fill(1e-15);
    close("matmul", &run(&[&a, &b], |t| t[0].matmul(t[1])), &naive::matmul(&a, &b), SUMS);
}

/// Half-float weights are exact: the same bytes as with the widened values in F32.
#[test]
fn half_float_weights_lose_nothing() {
    let mut random = Random(2);
    let backend = Backend::cpu(1).unwrap();
    for (left, right) in
        [([7, 5, 1, 1], [7, 3, 1, 1]), ([65, 33, 1, 1], [65, 31, 1, 2]), ([64, 16, 2, 1], [64, 1, 4, 3])]
    {
        let a = random.array(left, 2.0).halves();
        // Far more digits than half floats have.
        let b = random.array(right, 1.0);
        let weight = naive::weight(&backend, Dtype::F16, &a);
        let found = run_on(&backend, &[&b], |builder, t| builder.weight(&weight).matmul(t[0]));
        assert_eq!(found.data, run(&[&a, &b], |t| t[0].matmul(t[1])).data);
        close("matmul", &found, &naive::matmul(&a, &b), SUMS);
    }
    let kernel = random.array([3, 3, 5, 7], 1.0).halves();
    let x = random.array([9, 11, 5, 2], 1.0);
    let weight = naive::weight(&backend, Dtype::F16, &kernel);
    let found = run_on(&backend, &[&x], |builder, t| t[0].conv_2d(builder.weight(&weight), 2, 1));
    assert_eq!(found.data, run(&[&x, &kernel], |t| t[0].conv_2d(t[1], 2, 1)).data);
    close("conv_2d", &found, &naive::conv_2d(&x, &kernel, 2, 1), SUMS);
}

#[test]
fn convolutions() {
    let mut random = Random(3);
    // Picture, kernel's width, height, outputs; stride; padding.
    let cases: [(Shape, [usize; 3], usize, usize); 16] = [
        ([1, 1, 1, 1], [1, 1, 1], 1, 0),
        ([1, 1, 3, 2], [3, 3, 5], 1, 1),
        ([7, 5, 3, 1], [1, 1, 7], 1, 0),
        ([7, 5, 3, 2], [3, 3, 4], 1, 1),
        ([7, 5, 3, 2], [3, 3, 1], 2, 1),
        ([8, 8, 4, 1], [3, 3, 4], 2, 0),
        ([9, 9, 2, 1], [3, 3, 3], 3, 2),
        ([31, 33, 4, 1], [3, 3, 33], 1, 1),
        ([33, 1, 5, 3], [3, 1, 2], 1, 0),
        ([1, 65, 5, 1], [1, 3, 2], 2, 0),
        ([5, 7, 1, 1], [5, 7, 2], 1, 0),
        ([5, 7, 1, 1], [5, 7, 2], 4, 6),
        ([3, 3, 2, 1], [7, 7, 3], 1, 3),
        ([16, 16, 32, 2], [3, 3, 16], 1, 1),
        ([4, 4, 320, 1], [3, 3, 8], 1, 1),
        ([65, 64, 1, 1], [3, 3, 1], 1, 1),
    ];
    for (shape, [kw, kh, outputs], stride, padding) in cases {
        let x = random.array(shape, 2.0);
        let kernel = random.array([kw, kh, shape[2], outputs], 1.0);
        let expected = naive::conv_2d(&x, &kernel, stride, padding);
        close("conv_2d", &run(&[&x, &kernel], |t| t[0].conv_2d(t[1], stride, padding)), &expected, SUMS);
    }
}

/// ggml computes a convolution in portions of its scratch; this one takes more than one.
#[test]
fn convolutions_of_several_portions() {
    let mut random = Random(4);
    let x = random.array([160, 150, 3, 1], 1.0);
    let kernel = random.array([7, 7, 3, 64], 1.0);
    let found = run(&[&x, &kernel], |t| t[0].conv_2d(t[1], 1, 3));
    // Spot checks: the whole would take the naive code too long.
    for _ in 0..2000 {
        let [a, b, o] = [random.below(160), random.below(150), random.below(64)];
        let mut sum = 0.0;
        for i in 0..3 {
            for (ky, kx) in (0..7).flat_map(|ky| (0..7).map(move |kx| (ky, kx))) {
                let (sx, sy) = ((a + kx).wrapping_sub(3), (b + ky).wrapping_sub(3));
                if sx < 160 && sy < 150 {
                    sum += x.at([sx, sy, i, 0]) * kernel.at([kx, ky, i, o]);
                }
            }
        }
        let off = (found.at([a, b, o, 0]) - sum).abs();
        assert!(off < 2e-5, "at {a}, {b}, {o}: {off:e}");
    }
}

/// Head width, queries, keys, heads, batch.
const ATTENTIONS: [[usize; 5]; 19] = [
    [1, 1, 1, 1, 1],
    [3, 7, 5, 2, 1],
    [1, 5, 7, 1, 3],
    [8, 1, 33, 3, 1],
    [40, 1, 77, 8, 1],
    [64, 1, 511, 2, 1],
    [64, 1, 512, 2, 1],
    [33, 1, 515, 3, 1],
    [40, 1, 700, 1, 2],
    [7, 63, 65, 2, 1],
    [9, 64, 64, 2, 1],
    [31, 65, 63, 1, 2],
    [40, 77, 77, 4, 1],
    [64, 130, 129, 3, 1],
    [65, 200, 1, 2, 2],
    [512, 66, 70, 1, 1],
    [80, 256, 77, 2, 1],
    [160, 97, 128, 1, 1],
    [16, 300, 257, 1, 1],
];

#[test]
fn attention() {
    everywhere(|| {
        let mut random = Random(5);
        for [d, queries, keys, heads, batch] in ATTENTIONS {
            // From nearly even weights to nearly one-hot ones.
            for amplitude in [0.1, 1.0, 30.0] {
                let q = random.array([d, queries, heads, batch], amplitude);
                let k = random.array([d, keys, heads, batch], amplitude);
                let v = random.array([d, keys, heads, batch], 2.0);
                let scale = 1.0 / (d as f32).sqrt();
                // A score's rounding is an error of the weight's exponent, so large scores cost digits.
                let bound = if amplitude > 10.0 { 2e-4 } else { 2e-6 };
                let expected = as_tokens(naive::attention(&q, &k, &v, None, scale as f64));
                let [q, k, v] = [&q, &k, &v].map(naive::tokens);
                let found = run(&[&q, &k, &v], |t| t[0].attention(t[1], t[2], None, heads, scale));
                close("attention", &found, &expected, bound);
            }
        }
    });
}

/// `[d, heads, queries, n]` as tokens.
fn as_tokens(x: Array) -> Array {
    let [d, heads, queries, batch] = x.shape;
    Array::new([d * heads, queries, batch, 1], x.data)
}

#[test]
fn masked_attention() {
    everywhere(|| {
        let mut random = Random(6);
        for [d, queries, keys, heads, batch] in ATTENTIONS {
            let q = random.array([d, queries, heads, batch], 1.0);
            let k = random.array([d, keys, heads, batch], 1.0);
            let v = random.array([d, keys, heads, batch], 2.0);
            let offset = keys as isize - queries as isize;
            let causal = Array::from_fn([keys, queries, 1, 1], |[j, i, ..]| {
                if j as isize - offset.max(0) <= i as isize { 0.0 } else { f64::NEG_INFINITY }
            });
            let holes = Array::from_fn([keys, queries, 1, 1], |[_, i, ..]| match random.below(4) {
                0 => f64::NEG_INFINITY,
                _ if i % 5 == 4 => f64::NEG_INFINITY,
                _ => 0.0,
            });
            for mask in [causal, holes] {
                let expected = as_tokens(naive::attention(&q, &k, &v, Some(&mask), 0.5));
                let [q, k, v] = [&q, &k, &v].map(naive::tokens);
                let found = run(&[&q, &k, &v, &mask], |t| t[0].attention(t[1], t[2], Some(t[3]), heads, 0.5));
                close("masked attention", &found, &expected, 2e-6);
            }
        }
    });
}

#[test]
fn attention_survives_extreme_scores() {
    everywhere(|| {
        let mut random = Random(7);
        for queries in [3, 70] {
            let q = random.array([16, queries, 1, 1], 1e6);
            let k = random.array([16, 140, 1, 1], 1e6);
            let v = random.array([16, 140, 1, 1], 1.0);
            for scale in [1.0, 0.0] {
                let found = run(&[&q, &k, &v], |t| t[0].attention(t[1], t[2], None, 1, scale));
                let expected = as_tokens(naive::attention(&q, &k, &v, None, scale as f64));
                close("attention", &found, &expected, 1e-6);
            }
        }
    });
}
