//! The same bytes with any number of threads, and in every run.

mod naive;

use ggml::{Activation, Backend, Builder, Dtype, Picture, Shape, Tensor, Weight};
use naive::{Array, Random, cpu, everywhere, run_on};

/// The bytes of one op with 1, 2 and 3 threads, two runs each, are all the same.
fn same(what: &str, inputs: &[&Array], make: impl for<'g> Fn(&[Tensor<'g>]) -> Tensor<'g>) {
    same_with_weights(what, inputs, |_, tensors| make(tensors));
}

fn same_with_weights(what: &str, inputs: &[&Array], make: impl for<'g> Fn(&'g Builder, &[Tensor<'g>]) -> Tensor<'g>) {
    let mut first = None;
    for threads in [1, 2, 3] {
        let backend = cpu(threads);
        let builder = Builder::new(&backend).unwrap();
        let (tensors, slots): (Vec<_>, Vec<_>) = inputs.iter().map(|x| builder.input(Dtype::F32, x.shape)).unzip();
        let output = builder.output(make(&builder, &tensors));
        let mut graph = builder.build(&backend, usize::MAX).unwrap();
        for (slot, input) in slots.into_iter().zip(inputs) {
            graph.write(slot, &input.data).unwrap();
        }
        for run in 0..2 {
            graph.compute(&backend, &|| false).unwrap();
            let found: Vec<u32> = graph.read(output).unwrap().iter().map(|x| x.to_bits()).collect();
            let first = first.get_or_insert_with(|| found.clone());
            assert!(*first == found, "{what} with {threads} threads, run {run}");
        }
    }
}

#[test]
fn element_wise_ops_and_norms() {
    everywhere(|| {
        let mut random = Random(1);
        for shape in [[1, 1, 1, 1], [33, 7, 5, 1], [130, 31, 2, 2]] {
            let x = random.array(shape, 3.0);
            same("maps", &[&x], |t| {
                t[0].activate(Activation::Silu)
                    .tanh()
                    .activate(Activation::Gelu)
                    .scale(2.0, 1.0)
                    .activate(Activation::QuickGelu)
                    .activate(Activation::Relu)
            });
            let row = random.array([shape[0], 1, 1, 1], 1.0);
            same("layer_norm", &[&x, &row], |t| t[0].layer_norm(t[1], t[1], 1e-5));
            same("sum", &[&x], |t| t[0].add(t[0].narrow(0, 0, 1)).mul(t[0]));
            same("layout", &[&x], |t| {
                t[0].permute([2, 0, 3, 1])
                    .contiguous()
                    .pad(1, 1)
                    .concat(t[0].permute([2, 0, 3, 1]).contiguous().pad(1, 1), 2)
            });
            same("nearest", &[&x], |t| t[0].nearest(2 * shape[0], 2 * shape[1]));
            same("cast", &[&x], |t| t[0].cast(Dtype::F16).cast(Dtype::F32));
        }
        let x = random.array([66, 5, 32, 3], 3.0);
        let vector: Weight = naive::weight(&cpu(1), Dtype::F32, &random.array([32, 1, 1, 1], 1.0));
        same("group_norm", &[&x], |t| Picture::new(t[0]).group_norm(&vector, &vector, 8, 1e-5, true).planes());
        same("geglu", &[&x], |t| t[0].geglu());
    });
}

#[test]
fn matrix_products() {
    let mut random = Random(2);
    for (k, m, n) in [(33, 7, 1), (64, 16, 3), (65, 31, 33), (320, 320, 77), (768, 33, 65), (2880, 17, 9), (5, 16, 257)]
    {
        let a = random.array([k, m, 1, 1], 1.0);
        let b = random.array([k, n, 3, 1], 1.0);
        same("matmul", &[&a, &b], |t| t[0].matmul(t[1]));
        let weight: Weight = naive::weight(&cpu(1), Dtype::F16, &a);
        same_with_weights("matmul of halves", &[&b], |builder, t| builder.weight(&weight).matmul(t[0]));
    }
}

#[test]
fn convolutions() {
    let mut random = Random(3);
    let cases: [(Shape, usize, usize, usize); 5] = [
        ([33, 31, 4, 1], 3, 16, 1),
        ([7, 5, 64, 3], 3, 33, 2),
        ([65, 33, 3, 1], 1, 8, 1),
        ([1, 1, 320, 1], 3, 320, 1),
        ([131, 127, 32, 1], 3, 16, 1),
    ];
    for (shape, size, outputs, stride) in cases {
        let x = random.array(shape, 1.0);
        let kernel = random.array([size, size, shape[2], outputs], 1.0);
        same("conv_2d", &[&x, &kernel], |t| t[0].conv_2d(t[1], stride, size / 2));
    }
}

/// A convolution whose last portion of ggml's scratch is a single patch, if the scratch were as large
/// as ggml plans it for one thread (16 MiB and 64 bytes, in patches of 44, rounded down to eights) or
/// for three: kernels that work on several patches at once leave such a one to others.
#[test]
fn the_last_patch_of_a_convolution() {
    let mut random = Random(4);
    for width in [381_296 + 1, 381_304 + 1] {
        let x = random.array([width, 1, 7, 1], 1.0);
        let kernel = random.array([1, 1, 7, 4], 1.0);
        let run = |threads| {
            run_on(&Backend::cpu_with(threads, None).unwrap(), &[&x, &kernel], |_, t| t[0].conv_2d(t[1], 1, 0)).data
        };
        assert!(run(1) == run(3), "{width} patches");
    }
}

#[test]
fn attention() {
    everywhere(|| {
        let mut random = Random(5);
        let cases = [
            [64, 1, 512, 2, 1],
            [64, 1, 515, 3, 1],
            [40, 1, 2000, 8, 1],
            [40, 1, 700, 2, 2],
            [33, 2, 600, 1, 1],
            [64, 63, 65, 2, 1],
            [64, 64, 64, 2, 1],
            [31, 65, 513, 3, 1],
            [40, 77, 77, 12, 1],
            [40, 300, 77, 2, 2],
            [512, 130, 130, 1, 1],
        ];
        for [d, queries, keys, heads, batch] in cases {
            let q = random.array([d * heads, queries, batch, 1], 1.0);
            let k = random.array([d * heads, keys, batch, 1], 1.0);
            let v = random.array([d * heads, keys, batch, 1], 1.0);
            let mask =
                Array::from_fn(
                    [keys, queries, 1, 1],
                    |[j, i, ..]| {
                        if j <= i || j % 7 == 0 { 0.0 } else { f64::NEG_INFINITY }
                    },
                );
            same("attention", &[&q, &k, &v], |t| t[0].attention(t[1], t[2], None, heads, 0.2));
            same("masked attention", &[&q, &k, &v, &mask], |t| t[0].attention(t[1], t[2], Some(t[3]), heads, 0.2));
        }
    });
}

/// Attention beside a convolution in one graph: the scratch that the one asks for, which grows with
/// the number of threads, must not change the other.
#[test]
fn ops_that_share_scratch() {
    everywhere(|| {
        let mut random = Random(6);
        let x = random.array([33, 31, 64, 1], 1.0);
        let kernel = random.array([3, 3, 64, 64], 0.1);
        same("a block", &[&x, &kernel], |t| {
            let y = t[0].conv_2d(t[1], 1, 1).activate(Activation::Silu);
            let tokens = y.reshape([33 * 31, 64, 1, 1]).permute([1, 0, 2, 3]).contiguous();
            let mixed = tokens.attention(tokens, tokens, None, 1, 0.125);
            mixed.permute([1, 0, 2, 3]).contiguous().reshape([33, 31, 64, 1]).conv_2d(t[1], 1, 1)
        });
    });
}
