//! Element-wise ops, norms, and ops that move elements, each against its definition.

mod naive;

use ggml::{Activation, Builder, Dtype, Picture, Shape};
use naive::{Array, Random, close, cpu, everywhere, run, run_on};

/// Sizes that are no multiple of any vector's length, and some that are.
const SHAPES: [Shape; 9] = [
    [1, 1, 1, 1],
    [3, 1, 1, 1],
    [7, 5, 3, 2],
    [31, 1, 1, 3],
    [33, 4, 2, 1],
    [65, 3, 1, 1],
    [1, 130, 1, 1],
    [64, 16, 2, 2],
    [257, 9, 1, 1],
];

#[test]
fn maps_of_one_element() {
    everywhere(|| {
        let mut random = Random(1);
        // At both ends of each function, and where it bends.
        for amplitude in [0.01, 1.0, 6.0, 90.0, 3e4] {
            for shape in SHAPES {
                let x = random.array(shape, amplitude);
                close("silu", &run(&[&x], |x| x[0].activate(Activation::Silu)), &x.map(naive::silu), 3e-7);
                close("relu", &run(&[&x], |x| x[0].activate(Activation::Relu)), &x.map(|x| x.max(0.0)), 0.0);
                close("tanh", &run(&[&x], |x| x[0].tanh()), &x.map(f64::tanh), 2e-7);
                close("gelu", &run(&[&x], |x| x[0].activate(Activation::Gelu)), &x.map(naive::gelu), 4e-7);
                let quick = x.map(|x| x / (1.0 + (-1.702 * x).exp()));
                close("quick_gelu", &run(&[&x], |x| x[0].activate(Activation::QuickGelu)), &quick, 4e-7);
                close(
                    "scale",
                    &run(&[&x], |x| x[0].scale(-0.3, 0.7)),
                    &x.map(|x| -0.3f32 as f64 * x + 0.7f32 as f64),
                    2e-7,
                );
                close("scale", &run(&[&x], |x| x[0].scale(2.5, 0.0)), &x.map(|x| 2.5 * x), 1e-7);
            }
        }
    });
}

#[test]
fn maps_take_any_value() {
    everywhere(|| {
        let values =
            vec![0.0, -0.0, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE, 1e-45, -100.0];
        let x = Array::new([values.len(), 1, 1, 1], values);
        let silu = run(&[&x], |x| x[0].activate(Activation::Silu)).data;
        assert!(silu[2] == f32::MAX && silu[4] == f32::INFINITY && silu[8].abs() < 1e-35, "{silu:?}");
        let tanh = run(&[&x], |x| x[0].tanh()).data;
        assert_eq!(tanh[2..6], [1.0, -1.0, 1.0, -1.0]);
        let gelu = run(&[&x], |x| x[0].activate(Activation::Gelu)).data;
        assert!(gelu[2] == f32::MAX && gelu[3].abs() < 1e-37 && gelu[4] == f32::INFINITY, "{gelu:?}");
        let nan = Array::new([3, 1, 1, 1], vec![f32::NAN, 1.0, 2.0]);
        for found in [
            run(&[&nan], |x| x[0].activate(Activation::Silu)),
            run(&[&nan], |x| x[0].activate(Activation::Gelu)),
            run(&[&nan], |x| x[0].tanh()),
        ] {
            assert!(found.data[0].is_nan() && !found.data[1].is_nan(), "a NaN must stay where it is: {found:?}");
        }
    });
}

#[test]
fn sums_and_products_repeat_the_second_operand() {
    let mut random = Random(2);
    let whole: Shape = [30, 14, 6, 4];
    let parts: [Shape; 9] = [
        whole,
        [1, 1, 1, 1],
        [30, 1, 1, 1],
        [1, 14, 1, 1],
        [1, 1, 6, 1],
        [1, 1, 1, 4],
        [15, 7, 3, 2],
        [1, 1, 6, 4],
        [30, 14, 1, 1],
    ];
    for part in parts {
        let (x, y) = (random.array(whole, 3.0), random.array(part, 2.0));
        close("add", &run(&[&x, &y], |t| t[0].add(t[1])), &naive::repeated(&x, &y, |a, b| a + b), 1e-7);
        close("mul", &run(&[&x, &y], |t| t[0].mul(t[1])), &naive::repeated(&x, &y, |a, b| a * b), 1e-7);
        // The first may lie in rows anywhere, the second anyhow.
        let swapped = naive::permute(&x, [0, 2, 1, 3]);
        let turned = naive::permute(&y, [1, 0, 2, 3]);
        let found = run(&[&swapped, &turned], |t| t[0].permute([0, 2, 1, 3]).mul(t[1].permute([1, 0, 2, 3])));
        close("mul of views", &found, &naive::repeated(&x, &y, |a, b| a * b), 1e-7);
    }
}

#[test]
fn geglu_gates_with_the_second_half() {
    everywhere(|| {
        let mut random = Random(3);
        for shape in [[2, 1, 1, 1], [6, 5, 3, 2], [62, 7, 1, 1], [130, 3, 2, 1], [512, 4, 1, 1]] {
            let x = random.array(shape, 4.0);
            close("geglu", &run(&[&x], |x| x[0].geglu()), &naive::geglu(&x), 4e-7);
        }
    });
}

#[test]
fn norms() {
    everywhere(|| {
        let mut random = Random(4);
        let norm =
            |x: &Array, weight: &Array, bias: &Array| run(&[x, weight, bias], |t| t[0].layer_norm(t[1], t[2], 1e-5));
        for shape in SHAPES {
            let [weight, bias] = [(); 2].map(|()| random.array([shape[0], 1, 1, 1], 2.0));
            for (amplitude, offset) in [(1.0, 0.0), (5.0, 3.0), (1e4, 1e3), (1e-3, 0.0)] {
                let x = random.array(shape, amplitude).map(|x| x + offset);
                // A lone element is its own mean: what remains of it is rounding.
                if shape[0] > 1 {
                    let expected = naive::affine(&naive::norm(&x, 1e-5f32 as f64), &weight, &bias, 0);
                    close("norm", &norm(&x, &weight, &bias), &expected, 1e-6);
                }
            }
        }
        let group_norm = |x: &Array, groups, epsilon, weight: &Array, bias: &Array, silu| {
            let backend = cpu(2);
            let [weight, bias] = [weight, bias].map(|vector| naive::weight(&backend, Dtype::F32, vector));
            run_on(&backend, &[x], |_, x| Picture::new(x[0]).group_norm(&weight, &bias, groups, epsilon, silu).planes())
        };
        for (shape, groups) in [
            ([7, 5, 6, 2], 3),
            ([1, 1, 64, 3], 32),
            ([33, 31, 4, 1], 1),
            ([16, 16, 8, 2], 8),
            ([3, 1, 32, 1], 4),
            ([65, 63, 30, 2], 10),
            ([5, 7, 1280, 1], 32),
        ] {
            let [weight, bias] = [(); 2].map(|()| random.array([shape[2], 1, 1, 1], 2.0));
            for (epsilon, offset) in [(1e-5, 1.5), (1e-6, 100.0), (0.0, -1.5)] {
                let x = random.array(shape, 3.0).map(|x| x + offset);
                if epsilon < 1e-5 && shape[0] * shape[1] == 1 {
                    continue; // Two numbers may lie hardly further apart than their own rounding.
                }
                let normed = naive::group_norm(&x, groups, epsilon as f64);
                let expected = naive::affine(&normed, &weight, &bias, 2);
                // The mean's own rounding, in the units of the spread.
                let bound = 1e-6 + offset.abs() * 1e-7;
                close("group_norm", &group_norm(&x, groups, epsilon, &weight, &bias, false), &expected, bound);
                let found = group_norm(&x, groups, epsilon, &weight, &bias, true);
                close("group_norm and silu", &found, &expected.map(naive::silu), bound);
            }
        }
        // Of a constant nothing is left but the bias, and nothing is divided by zero.
        let [one, zero] = [1.0, 0.0].map(|value| Array::from_fn([64, 1, 1, 1], |_| value));
        let flat = Array::from_fn([64, 8, 4, 1], |_| 3.0);
        assert!(norm(&flat, &one, &zero).data.iter().all(|&x| x == 0.0));
        let [one, zero] = [1.0, 0.0].map(|value| Array::from_fn([4, 1, 1, 1], |_| value));
        assert!(group_norm(&flat, 2, 1e-5, &one, &zero, false).data.iter().all(|&x| x == 0.0));
        // What is no number is seen.
        let mut bad = flat.clone();
        bad.data[77] = f32::NAN;
        assert!(group_norm(&bad, 2, 1e-5, &one, &zero, true).data.iter().any(|x| x.is_nan()));
    });
}

#[test]
fn nearest_picks_as_pytorch_does() {
    let mut random = Random(5);
    for (w, h, width, height) in
        [(1, 1, 1, 1), (1, 3, 7, 3), (5, 7, 10, 14), (7, 9, 13, 17), (33, 31, 65, 62), (3, 64, 9, 127)]
    {
        let x = random.array([w, h, 3, 2], 1.0);
        close("nearest", &run(&[&x], |x| x[0].nearest(width, height)), &naive::nearest(&x, width, height), 0.0);
    }
}

#[test]
fn padding_and_concatenation() {
    let mut random = Random(6);
    for (right, bottom) in [(0, 0), (1, 0), (0, 1), (1, 1), (33, 7)] {
        let x = random.array([7, 5, 3, 2], 1.0);
        close("pad", &run(&[&x], |x| x[0].pad(right, bottom)), &naive::pad(&x, right, bottom), 0.0);
    }
    for dimension in 0..4 {
        for extra in [1, 3, 31] {
            let x = random.array([7, 5, 3, 2], 1.0);
            let mut shape = x.shape;
            shape[dimension] = extra;
            let y = random.array(shape, 1.0);
            let expected = naive::concat(&x, &y, dimension);
            close("concat", &run(&[&x, &y], |t| t[0].concat(t[1], dimension)), &expected, 0.0);
            let turned = naive::permute(&y, [3, 1, 0, 2]);
            let found = run(&[&x, &turned], |t| t[0].concat(t[1].permute([2, 1, 3, 0]), dimension));
            close("concat of a view", &found, &expected, 0.0);
        }
    }
}

#[test]
fn views_show_the_same_elements() {
    let mut random = Random(7);
    let x = random.array([6, 5, 4, 3], 1.0);
    for a in 0..4 {
        for b in (0..4).filter(|&b| b != a) {
            for c in (0..4).filter(|&c| c != a && c != b) {
                let places = [a, b, c, 6 - a - b - c];
                let expected = naive::permute(&x, places);
                close("permute", &run(&[&x], |x| x[0].permute(places).contiguous()), &expected, 0.0);
            }
        }
    }
    for dimension in 0..4 {
        for (start, length) in [(0, 1), (1, 2), (2, 1), (0, 3)] {
            let expected = naive::narrow(&x, dimension, start, length);
            let found = run(&[&x], |x| x[0].narrow(dimension, start, length).contiguous());
            close("narrow", &found, &expected, 0.0);
        }
    }
    // Views of views.
    let expected = naive::narrow(&naive::permute(&naive::narrow(&x, 3, 1, 2), [1, 0, 2, 3]), 0, 2, 3);
    let found = run(&[&x], |x| x[0].narrow(3, 1, 2).permute([1, 0, 2, 3]).contiguous().narrow(0, 2, 3));
    close("views of views", &found, &expected, 0.0);
    let reshaped = run(&[&x], |x| x[0].reshape([12, 30, 1, 1]));
    assert_eq!((reshaped.shape, reshaped.data), ([12, 30, 1, 1], x.data));
}

/// Dimensions of size 1 keep odd strides through views, at which ggml's own checks differ.
#[test]
fn views_with_single_dimensions_go_into_every_op() {
    everywhere(|| {
        let mut random = Random(8);
        for shape in [[8, 1, 6, 1], [1, 8, 1, 6], [8, 6, 1, 1], [1, 1, 8, 6], [2, 1, 1, 4], [1, 4, 1, 1]] {
            let x = random.array(shape, 1.0);
            for places in [[0, 2, 1, 3], [1, 0, 2, 3], [3, 1, 2, 0], [0, 1, 3, 2], [2, 3, 0, 1]] {
                let y = naive::permute(&x, places);
                fn turn(x: ggml::Tensor<'_>, places: [usize; 4]) -> ggml::Tensor<'_> {
                    x.permute(places).contiguous()
                }
                run(&[&x], |x| {
                    turn(x[0], places).scale(2.0, 1.0).activate(Activation::Silu).tanh().activate(Activation::Gelu)
                });
                run(&[&x], |x| {
                    let row = turn(x[0], places).reshape([x[0].elements(), 1, 1, 1]).narrow(0, 0, y.shape[0]);
                    turn(x[0], places).layer_norm(row, row, 1e-5)
                });
                run(&[&x], |x| Picture::new(turn(x[0], places)).activate(Activation::Silu).planes());
                run(&[&x], |x| turn(x[0], places).pad(1, 2).nearest(y.shape[0] + 1, y.shape[1] + 2));
                run(&[&x], |x| turn(x[0], places).matmul(turn(x[0], places)));
                run(&[&x], |x| {
                    turn(x[0], places)
                        .add(turn(x[0], places))
                        .mul(turn(x[0], places))
                        .concat(turn(x[0], places), 0)
                        .geglu()
                });
                run(&[&x], |x| {
                    let [a, b, c, d] = y.shape;
                    let tokens = turn(x[0], places).reshape([a, b, c * d, 1]);
                    tokens.attention(tokens, tokens, None, 1, 1.0)
                });
                run(&[&x], |x| turn(x[0], places).cast(Dtype::F16).cast(Dtype::F32));
                close("a view", &run(&[&x], |x| turn(x[0], places).scale(1.0, 0.0)), &y, 0.0);
            }
            for (dimension, size) in shape.into_iter().enumerate() {
                let found = run(&[&x], |x| x[0].narrow(dimension, size - 1, 1).contiguous().scale(1.0, 0.0));
                close("a slice", &found, &naive::narrow(&x, dimension, size - 1, 1), 0.0);
            }
        }
    });
}

#[test]
fn rows_by_index() {
    let mut random = Random(9);
    let backend = cpu(3);
    for dtype in [Dtype::F32, Dtype::F16] {
        for (width, rows, count) in [(1, 1, 1), (7, 33, 65), (65, 3, 31), (768, 100, 77)] {
            let table = random.array([width, rows, 1, 1], 2.0).halves();
            let indices: Vec<i32> = (0..count).map(|_| random.below(rows) as i32).collect();
            let table_weight = naive::weight(&backend, dtype, &table);
            let builder = Builder::new(&backend).unwrap();
            let (at, slot) = builder.indices(count, rows);
            let output = builder.output(builder.weight(&table_weight).rows(at));
            let mut graph = builder.build(&backend, usize::MAX).unwrap();
            graph.write_indices(slot, &indices).unwrap();
            graph.compute(&backend, &|| false).unwrap();
            let expected = Array::from_fn([width, count, 1, 1], |[a, b, ..]| table.at([a, indices[b] as usize, 0, 0]));
            close("rows", &Array::new(expected.shape, graph.read(output).unwrap()), &expected, 0.0);
        }
    }
}

#[test]
fn casts_round_to_nearest() {
    let mut random = Random(10);
    let mut x = random.array([33, 31, 3, 1], 100.0);
    x.data[..6].copy_from_slice(&[0.0, -0.0, 65504.0, 1e9, 6e-8, 5.9604645e-8]);
    let found = run(&[&x], |x| x[0].cast(Dtype::F16).cast(Dtype::F32));
    let expected = x.halves();
    assert!(found.data.iter().zip(&expected.data).all(|(a, b)| a.to_bits() == b.to_bits()));
}
