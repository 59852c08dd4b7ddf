//! Linear maps and convolutions with stored weights, with each of our kernels and with ggml's own,
//! against their definitions.

mod naive;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ggml::kernels::Isa;
use ggml::{Addend, Backend, Builder, Dtype, Error, MapKind, Next, Picture, Shape, Storage, Tensor, Weight, Window};
use naive::{Array, Random, close, run_on};

/// Relative L2 distance for sums of up to some thousand products in single precision.
const SUMS: f64 = 1e-6;

/// Back ends with `threads` threads: every kernel that this processor has, and ggml's own.
fn backends(threads: usize) -> Vec<(String, Backend)> {
    let kernels = Isa::available().into_iter().map(Some).chain([None]);
    let name = |kernels: Option<Isa>| kernels.map_or("stock".to_owned(), |isa| isa.to_string());
    kernels.map(|kernels| (name(kernels), Backend::cpu_with(threads, kernels).unwrap())).collect()
}

fn stored(backend: &Backend, kind: Option<MapKind>, dtype: Dtype, values: &Array) -> Weight {
    let storage = Storage::new();
    let weight = match kind {
        Some(kind) => storage.add_map(kind, dtype, values.shape),
        None => storage.add(dtype, values.shape),
    };
    let weight = weight.unwrap();
    storage.allocate(backend).unwrap();
    let bytes: Vec<u8> = match dtype {
        Dtype::F16 => values.data.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect(),
        Dtype::BF16 => values.data.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect(),
        _ => values.data.iter().flat_map(|x| x.to_le_bytes()).collect(),
    };
    weight.write(0, &bytes).unwrap();
    weight
}

/// A convolution of planes with as much padding on every side.
fn convolve<'g>(x: Tensor<'g>, weight: &Weight, bias: Option<&Weight>, stride: usize, padding: usize) -> Tensor<'g> {
    let window = Window { stride, padding: [padding; 2], wraps: false };
    Picture::new(x).convolve(weight, bias, window, Addend::None).planes()
}

fn with_bias(mut y: Array, bias: &Array, dimension: usize) -> Array {
    let sum = naive::repeated(&y, &Array::from_fn(y.shape, |i| bias.at([i[dimension], 0, 0, 0])), |y, b| y + b);
    y.data = sum.data;
    y
}

#[test]
fn linear_maps() {
    let mut random = Random(1);
    let cases: [(Shape, usize); 9] = [
        ([1, 1, 1, 1], 1),
        ([3, 7, 1, 1], 5),
        ([31, 33, 2, 1], 17),
        ([33, 31, 1, 3], 16),
        ([64, 129, 1, 1], 33),
        ([320, 77, 2, 1], 65),
        ([1280, 2, 1, 1], 320),
        ([257, 300, 1, 1], 1),
        ([2880, 130, 1, 1], 9),
    ];
    for (name, backend) in backends(2) {
        for (case, (shape, outputs)) in cases.into_iter().enumerate() {
            let dtype = [Dtype::F32, Dtype::F16, Dtype::BF16][case % 3];
            let x = random.array(shape, 2.0);
            let matrix = random.array([shape[0], outputs, 1, 1], 1.0).stored_as(dtype);
            let bias = random.array([outputs, 1, 1, 1], 1.0);
            let expected = naive::matmul(&matrix, &x);
            let held = stored(&backend, None, Dtype::F32, &bias);
            let weight = stored(&backend, Some(MapKind::Linear), dtype, &matrix);
            close(&name, &run_on(&backend, &[&x], |_, t| t[0].linear(&weight, None, None)), &expected, SUMS);
            let found = run_on(&backend, &[&x], |_, t| t[0].linear(&weight, Some(&held), None));
            close(&name, &found, &with_bias(expected.clone(), &bias, 0), SUMS);
            let found = run_on(&backend, &[&x, &expected], |_, t| t[0].linear(&weight, Some(&held), Some(t[1])));
            let expected_sum = naive::repeated(&with_bias(expected.clone(), &bias, 0), &expected, |a, b| a + b);
            close(&name, &found, &expected_sum, SUMS);
            // A convolution's kernel of one pixel is a linear map.
            let kernel = Array::new([1, 1, shape[0], outputs], matrix.data.clone());
            let weight = stored(&backend, Some(MapKind::Convolution), dtype, &kernel);
            close(&name, &run_on(&backend, &[&x], |_, t| t[0].linear(&weight, None, None)), &expected, SUMS);
        }
    }
}

#[test]
fn convolutions() {
    let mut random = Random(2);
    // Picture, kernel's width, height, outputs; stride; padding.
    let cases: [(Shape, [usize; 3], usize, usize); 19] = [
        ([1, 1, 1, 1], [1, 1, 1], 1, 0),
        ([1, 1, 3, 2], [3, 3, 5], 1, 1),
        ([7, 5, 3, 2], [3, 3, 4], 1, 1),
        ([7, 5, 3, 2], [3, 3, 1], 2, 1),
        ([8, 8, 4, 1], [3, 3, 4], 2, 0),
        ([9, 9, 2, 1], [3, 3, 3], 3, 2),
        ([31, 33, 4, 1], [3, 3, 33], 1, 1),
        ([33, 1, 5, 3], [3, 1, 2], 1, 0),
        ([1, 65, 5, 1], [1, 3, 2], 2, 0),
        ([5, 7, 1, 1], [5, 7, 2], 4, 6),
        ([16, 16, 32, 2], [3, 3, 16], 1, 1),
        ([4, 4, 320, 1], [3, 3, 8], 1, 1),
        // By tiles of 4×4, whole ones and others, with one block of inputs and with several.
        ([12, 8, 16, 1], [3, 3, 1], 1, 1),
        ([33, 31, 16, 1], [3, 3, 31], 1, 1),
        ([7, 11, 48, 2], [3, 3, 33], 1, 1),
        ([30, 13, 80, 1], [3, 3, 7], 1, 0),
        ([15, 22, 272, 1], [3, 3, 3], 1, 2),
        ([8, 7, 32, 3], [3, 3, 65], 1, 1),
        ([61, 63, 16, 1], [3, 3, 4], 1, 1),
    ];
    for (name, backend) in backends(2) {
        for (case, (shape, [kw, kh, outputs], stride, padding)) in cases.into_iter().enumerate() {
            let x = random.array(shape, 2.0);
            let dtype = [Dtype::F16, Dtype::F32, Dtype::BF16][case % 3];
            let kernel = random.array([kw, kh, shape[2], outputs], 1.0).stored_as(dtype);
            let bias = random.array([outputs, 1, 1, 1], 1.0);
            let expected = with_bias(naive::conv_2d(&x, &kernel, stride, padding), &bias, 2);
            let weight = stored(&backend, Some(MapKind::Convolution), dtype, &kernel);
            let held = stored(&backend, None, Dtype::F32, &bias);
            let found = run_on(&backend, &[&x], |_, t| convolve(t[0], &weight, Some(&held), stride, padding));
            close(&name, &found, &expected, SUMS);
        }
    }
}

/// Padding on one side, wrapping around, an enlargement before, and what the result is added to.
#[test]
fn convolutions_of_other_kinds() {
    let mut random = Random(5);
    for (name, backend) in backends(2) {
        for (shape, outputs) in
            [([5, 7, 3, 2], 4), ([8, 6, 32, 1], 17), ([3, 3, 1, 1], 1), ([16, 15, 5, 3], 33), ([11, 12, 80, 2], 33)]
        {
            let x = random.array(shape, 1.0);
            let kernel = random.array([3, 3, shape[2], outputs], 1.0).halves();
            let weight = stored(&backend, Some(MapKind::Convolution), Dtype::F16, &kernel);
            let run =
                |x: &[&Array], window: Window, make: &dyn for<'g> Fn(&[Tensor<'g>]) -> (Picture<'g>, Addend<'g>)| {
                    run_on(&backend, x, |_, t| {
                        let (x, added) = make(t);
                        x.convolve(&weight, None, window, added).planes()
                    })
                };
            let zeros = Window { stride: 1, padding: [1, 1], wraps: false };

            let expected = naive::conv_2d(&naive::pad(&x, 1, 1), &kernel, 2, 0);
            let window = Window { stride: 2, padding: [0, 1], wraps: false };
            close(&name, &run(&[&x], window, &|t| (Picture::new(t[0]), Addend::None)), &expected, SUMS);

            let [w, h, c, n] = shape;
            for (before, after) in [(1, 1), (0, 2), (2, 0)] {
                let around = Array::from_fn([w + before + after, h + before + after, c, n], |[a, b, c, n]| {
                    x.at([(a + w - before) % w, (b + h - before) % h, c, n])
                });
                let expected = naive::conv_2d(&around, &kernel, 1, 0);
                let window = Window { stride: 1, padding: [before, after], wraps: true };
                close(&name, &run(&[&x], window, &|t| (Picture::new(t[0]), Addend::None)), &expected, SUMS);
            }

            for [width, height] in [[2 * w, 2 * h], [2 * w - 1, 2 * h - 1], [3 * w, h]] {
                let large = naive::nearest(&x, width, height);
                let expected = naive::conv_2d(&large, &kernel, 1, 1);
                let found = run(&[&x], zeros, &|t| (Picture::new(t[0]).nearest(width, height), Addend::None));
                close(&name, &found, &expected, SUMS);
                // An enlargement that is looked at in other ways.
                let found = run_on(&backend, &[&x], |_, t| {
                    let large = Picture::new(t[0]).nearest(width, height);
                    Picture::from_tokens(large.tokens(), large.width(), large.height()).planes()
                });
                close(&name, &found, &large, 0.0);
            }

            let expected = naive::conv_2d(&x, &kernel, 1, 1);
            let added = random.array(expected.shape, 1.0);
            let found = run(&[&x, &added], zeros, &|t| (Picture::new(t[0]), Addend::Picture(Picture::new(t[1]))));
            close(&name, &found, &naive::repeated(&expected, &added, |a, b| a + b), SUMS);
            let added = random.array([outputs, n, 1, 1], 1.0);
            let found = run(&[&x, &added], zeros, &|t| (Picture::new(t[0]), Addend::Channels(t[1])));
            let spread = Array::new([1, 1, outputs, n], added.data.clone());
            close(&name, &found, &naive::repeated(&expected, &spread, |a, b| a + b), SUMS);
        }
        let (x, y) = (random.array([5, 4, 3, 2], 1.0), random.array([5, 4, 7, 2], 1.0));
        let found = run_on(&backend, &[&x, &y], |_, t| Picture::new(t[0]).concat(Picture::new(t[1])).planes());
        close(&name, &found, &naive::concat(&x, &y, 2), 0.0);
    }
}

/// The same bytes with any number of threads, and in every run.
#[test]
fn bytes_do_not_depend_on_threads() {
    let mut random = Random(3);
    let x = random.array([31, 33, 64, 2], 1.0);
    let kernel = random.array([3, 3, 64, 77], 0.1);
    let matrix = random.array([77, 130, 1, 1], 0.1);
    for isa in Isa::available() {
        let mut first = None;
        for threads in [1, 2, 3, 7] {
            let backend = Backend::cpu_with(threads, Some(isa)).unwrap();
            let kernel = stored(&backend, Some(MapKind::Convolution), Dtype::F16, &kernel);
            let matrix = stored(&backend, Some(MapKind::Linear), Dtype::F32, &matrix);
            let builder = Builder::new(&backend).unwrap();
            let (input, slot) = builder.input(Dtype::F32, x.shape);
            let y = convolve(input, &kernel, None, 1, 1).permute([1, 2, 0, 3]).contiguous();
            let y = y.linear(&matrix, None, None);
            let output = builder.output(y);
            let mut graph = builder.build(&backend, usize::MAX).unwrap();
            assert_eq!(graph.flops(), 2.0 * (31 * 33 * 2) as f64 * (9 * 64 * 77 + 77 * 130) as f64);
            graph.write(slot, &x.data).unwrap();
            for run in 0..3 {
                graph.compute(&backend, &|| false).unwrap();
                let found: Vec<u32> = graph.read(output).unwrap().iter().map(|x| x.to_bits()).collect();
                assert!(*first.get_or_insert_with(|| found.clone()) == found, "{isa}, {threads} threads, run {run}");
            }
        }
    }
}

/// A run can be stopped in the middle of one op, also the last, and then run again.
#[test]
fn a_run_is_stopped_inside_an_op() {
    let mut random = Random(4);
    let x = random.array([64, 64, 32, 1], 1.0);
    let kernel = random.array([3, 3, 32, 64], 0.1);
    let backend = Backend::cpu(2).unwrap();
    let weight = stored(&backend, Some(MapKind::Convolution), Dtype::F32, &kernel);
    let builder = Builder::new(&backend).unwrap();
    let (input, slot) = builder.input(Dtype::F32, x.shape);
    let output = builder.output(convolve(input, &weight, None, 1, 1));
    let mut graph = builder.build(&backend, usize::MAX).unwrap();
    graph.write(slot, &x.data).unwrap();
    graph.compute(&backend, &|| false).unwrap();
    let whole = graph.read(output).unwrap();
    // The shortest slices: the question comes after each band of the calling thread's.
    let run = |graph: &mut ggml::Graph, count: usize, then: &dyn Fn() -> Next| {
        let asked = Cell::new(0);
        graph.compute_in_slices(&backend, &mut || {
            asked.set(asked.get() + 1);
            if asked.get() >= count { then() } else { Next::Run(Duration::ZERO) }
        })
    };
    let mut stopped = 0;
    for count in 1..20 {
        match run(&mut graph, count, &|| Next::Stop) {
            Err(Error::Stopped) => {
                stopped += 1;
                assert!(graph.read(output).is_err());
            }
            other => other.unwrap(),
        }
    }
    assert!(stopped > 3, "{stopped}");
    let caught = catch_unwind(AssertUnwindSafe(|| run(&mut graph, 3, &|| panic!("asked"))));
    assert_eq!(*caught.unwrap_err().downcast::<&str>().unwrap(), "asked");
    // Slices, and pauses between them, change nothing.
    run(&mut graph, usize::MAX, &|| Next::Stop).unwrap();
    assert!(graph.read(output).unwrap() == whole);
    let pause = || {
        std::thread::sleep(Duration::from_millis(1));
        Next::Run(Duration::from_millis(1))
    };
    graph.compute_in_slices(&backend, &mut || pause()).unwrap();
    assert!(graph.read(output).unwrap() == whole);
    let costs = graph.costs();
    let convolution = costs.iter().find(|cost| cost.name == "convolution").unwrap();
    assert!(convolution.ops == 1 && convolution.seconds > 0.0 && convolution.bytes > 0.0, "{costs:?}");
    assert_eq!(convolution.flops / graph.flops() % 1.0, 0.0);
}

/// Packed keys and values stay from run to run while what they are made from does, and only then.
#[test]
fn what_stays_the_same_is_computed_once() {
    let mut random = Random(6);
    let array = |random: &mut Random, length| random.array([64, length, 2, 1], 1.0);
    let [x, other_x] = [(); 2].map(|()| array(&mut random, 50));
    let [text, other_text] = [(); 2].map(|()| array(&mut random, 9));
    let matrices = [(); 2].map(|()| random.array([64, 64, 1, 1], 0.2));
    for (name, backend) in backends(2) {
        let [first, second] = matrices.each_ref().map(|m| stored(&backend, Some(MapKind::Linear), Dtype::F32, m));
        let build = || {
            let builder = Builder::new(&backend).unwrap();
            let (x, x_slot) = builder.input(Dtype::F32, x.shape);
            let (text, text_slot) = builder.input(Dtype::F32, text.shape);
            // Much comes before and after, whose memory is used again.
            let mut y = (0..6).fold(x, |y, _| y.linear(&second, None, None).scale(1.0, 0.1));
            for _ in 0..3 {
                let (k, v) = (text.linear(&first, None, None), text.linear(&second, None, None));
                y = y.attention(k, v, None, 4, 0.5).linear(&first, None, Some(y));
                y = (0..6).fold(y, |y, _| y.linear(&second, None, None).scale(1.0, 0.1));
            }
            let output = builder.output(y);
            (builder.build(&backend, usize::MAX).unwrap(), x_slot, text_slot, output)
        };
        let fresh = |x: &Array, text: &Array| {
            let (mut graph, x_slot, text_slot, output) = build();
            graph.write(x_slot, &x.data).unwrap();
            graph.write(text_slot, &text.data).unwrap();
            graph.compute(&backend, &|| false).unwrap();
            graph.read(output).unwrap()
        };
        let (mut graph, x_slot, text_slot, output) = build();
        for (x, text) in [(&x, &text), (&other_x, &text), (&x, &text), (&x, &other_text), (&other_x, &other_text)] {
            graph.write(x_slot, &x.data).unwrap();
            graph.write(text_slot, &text.data).unwrap();
            graph.compute(&backend, &|| false).unwrap();
            for x in [x, &other_x, x] {
                graph.write(x_slot, &x.data).unwrap();
                // A run that is cut short leaves nothing half-done behind.
                let mut left = 7;
                let cut = graph.compute_in_slices(&backend, &mut || {
                    left -= 1;
                    if left == 0 { Next::Stop } else { Next::Run(Duration::ZERO) }
                });
                assert!(cut == Err(Error::Stopped), "{name}");
                graph.compute(&backend, &|| false).unwrap();
                assert!(graph.read(output).unwrap() == fresh(x, text), "{name}");
            }
        }
        // Other weights make other keys.
        let bytes: Vec<u8> = matrices[1].data.iter().flat_map(|x| x.to_le_bytes()).collect();
        first.write(0, &bytes).unwrap();
        graph.compute(&backend, &|| false).unwrap();
        assert!(graph.read(output).unwrap() == fresh(&other_x, &other_text), "{name}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for (_, backend) in backends(1) {
        let zeros = |shape: Shape| Array::from_fn(shape, |_| 0.0);
        let matrix = stored(&backend, Some(MapKind::Linear), Dtype::F32, &zeros([4, 5, 1, 1]));
        let kernel = stored(&backend, Some(MapKind::Convolution), Dtype::F32, &zeros([3, 3, 4, 5]));
        let bias = stored(&backend, None, Dtype::F32, &zeros([6, 1, 1, 1]));
        let error = |shape: Shape, make: &dyn for<'g> Fn(ggml::Tensor<'g>) -> ggml::Tensor<'g>| {
            let builder = Builder::new(&backend).unwrap();
            let (x, _) = builder.input(Dtype::F32, shape);
            builder.output(make(x));
            builder.build(&backend, usize::MAX).err().expect("it was built")
        };
        error([3, 7, 1, 1], &|x| x.linear(&matrix, None, None));
        error([4, 7, 1, 1], &|x| x.linear(&matrix, Some(&bias), None));
        error([4, 7, 1, 1], &|x| x.linear(&kernel, None, None));
        error([7, 7, 3, 1], &|x| convolve(x, &kernel, None, 1, 1));
        error([2, 2, 4, 1], &|x| convolve(x, &kernel, None, 1, 0));
        error([7, 7, 4, 1], &|x| convolve(x, &kernel, None, 0, 0));
        error([7, 7, 4, 1], &|x| convolve(x, &kernel, None, usize::MAX, usize::MAX));
        error([7, 7, 4, 1], &|x| x.permute([1, 0, 2, 3]).linear(&matrix, None, None));
        // Only maps are stored in BF16, and only whole numbers are written to them.
        assert!(Storage::new().add(Dtype::BF16, [4, 1, 1, 1]).is_err());
        let matrix = stored(&backend, Some(MapKind::Linear), Dtype::BF16, &zeros([4, 5, 1, 1]));
        assert!(matrix.write(2, &[0; 4]).is_ok() && matrix.write(38, &[0; 2]).is_ok());
        assert!(matrix.write(1, &[0; 2]).is_err() && matrix.write(2, &[0; 3]).is_err());
        assert!(matrix.write(38, &[0; 4]).is_err() && matrix.write(usize::MAX - 1, &[0; 2]).is_err());
    }
    // Weights that are packed do not go into a graph that ggml computes.
    let (ours, stock) = (Backend::cpu(1).unwrap(), Backend::cpu_with(1, None).unwrap());
    let packed = stored(&ours, Some(MapKind::Linear), Dtype::F32, &Array::from_fn([4, 4, 1, 1], |_| 0.0));
    let builder = Builder::new(&stock).unwrap();
    builder.output(builder.input(Dtype::F32, [4, 3, 1, 1]).0.linear(&packed, None, None));
    assert!(builder.build(&stock, usize::MAX).is_err());
    // And a graph of the one kind does not run, nor is it built, on the other.
    for (one, other) in [(&ours, &stock), (&stock, &ours)] {
        let make = || {
            let builder = Builder::new(one).unwrap();
            builder.output(builder.input(Dtype::F32, [4, 3, 1, 1]).0.geglu());
            builder
        };
        assert!(make().build(other, usize::MAX).is_err());
        let mut graph = make().build(one, usize::MAX).unwrap();
        assert!(graph.compute(other, &|| false).is_err());
        graph.compute(one, &|| false).unwrap();
    }
    // Packed weights are no tensors.
    let backend = Backend::cpu(1).unwrap();
    let matrix = stored(&backend, Some(MapKind::Linear), Dtype::F32, &Array::from_fn([4, 4, 1, 1], |_| 0.0));
    let builder = Builder::new(&backend).unwrap();
    builder.output(builder.weight(&matrix));
    assert!(builder.build(&backend, usize::MAX).is_err());
}
