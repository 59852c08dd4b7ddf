//! Linear maps and convolutions with stored weights, with each of our kernels and with ggml's own,
//! against their definitions.

mod naive;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ggml::kernels::Isa;
use ggml::{Backend, Builder, Dtype, Error, MapKind, Shape, Storage, Weight};
use naive::{Array, Random, close, run_on};

/// Relative L2 distance for sums of up to some thousand products in single precision.
const SUMS: f64 = 1e-6;

/// Back ends with `threads` threads: every kernel that this processor has, and ggml's own.
fn backends(threads: usize) -> Vec<(String, Backend)> {
    let kernels = Isa::available().into_iter().map(Some).chain([None]);
    let name = |kernels: Option<Isa>| kernels.map_or("stock".to_owned(), |isa| isa.to_string());
    kernels.map(|kernels| (name(kernels), Backend::cpu(threads).unwrap().with_kernels(kernels))).collect()
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
        _ => values.data.iter().flat_map(|x| x.to_le_bytes()).collect(),
    };
    weight.write(0, &bytes).unwrap();
    weight
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
            let dtype = [Dtype::F32, Dtype::F16][case % 2];
            let x = random.array(shape, 2.0);
            let matrix = random.array([shape[0], outputs, 1, 1], 1.0).halves();
            let bias = random.array([outputs, 1, 1, 1], 1.0);
            let expected = naive::matmul(&matrix, &x);
            let held = stored(&backend, None, Dtype::F32, &bias);
            let weight = stored(&backend, Some(MapKind::Linear), dtype, &matrix);
            close(&name, &run_on(&backend, &[&x], |_, t| t[0].linear(&weight, None)), &expected, SUMS);
            let found = run_on(&backend, &[&x], |_, t| t[0].linear(&weight, Some(&held)));
            close(&name, &found, &with_bias(expected.clone(), &bias, 0), SUMS);
            // A convolution's kernel of one pixel is a linear map.
            let kernel = Array::new([1, 1, shape[0], outputs], matrix.data.clone());
            let weight = stored(&backend, Some(MapKind::Convolution), dtype, &kernel);
            close(&name, &run_on(&backend, &[&x], |_, t| t[0].linear(&weight, None)), &expected, SUMS);
        }
    }
}

#[test]
fn convolutions() {
    let mut random = Random(2);
    // Picture, kernel's width, height, outputs; stride; padding.
    let cases: [(Shape, [usize; 3], usize, usize); 12] = [
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
    ];
    for (name, backend) in backends(2) {
        for (case, (shape, [kw, kh, outputs], stride, padding)) in cases.into_iter().enumerate() {
            let x = random.array(shape, 2.0);
            let kernel = random.array([kw, kh, shape[2], outputs], 1.0).halves();
            let bias = random.array([outputs, 1, 1, 1], 1.0);
            let expected = with_bias(naive::conv_2d(&x, &kernel, stride, padding), &bias, 2);
            let weight = stored(&backend, Some(MapKind::Convolution), [Dtype::F16, Dtype::F32][case % 2], &kernel);
            let held = stored(&backend, None, Dtype::F32, &bias);
            let found = run_on(&backend, &[&x], |_, t| t[0].convolve(&weight, Some(&held), stride, padding));
            close(&name, &found, &expected, SUMS);
        }
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
            let backend = Backend::cpu(threads).unwrap().with_kernels(Some(isa));
            let kernel = stored(&backend, Some(MapKind::Convolution), Dtype::F16, &kernel);
            let matrix = stored(&backend, Some(MapKind::Linear), Dtype::F32, &matrix);
            let builder = Builder::new(&backend).unwrap();
            let (input, slot) = builder.input(Dtype::F32, x.shape);
            let y = input.convolve(&kernel, None, 1, 1).permute([1, 2, 0, 3]).contiguous().linear(&matrix, None);
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
    let output = builder.output(input.convolve(&weight, None, 1, 1));
    let mut graph = builder.build(&backend, usize::MAX).unwrap();
    graph.write(slot, &x.data).unwrap();
    graph.compute(&backend, &|| false).unwrap();
    let whole = graph.read(output).unwrap();
    let asked = Cell::new(0);
    let times = |then: &dyn Fn() -> bool, count: usize| {
        asked.set(asked.get() + 1);
        if asked.get() >= count { then() } else { false }
    };
    let mut stopped = 0;
    for count in 1..20 {
        asked.set(0);
        match graph.compute(&backend, &|| times(&|| true, count)) {
            Err(Error::Stopped) => {
                stopped += 1;
                assert!(graph.read(output).is_err());
            }
            other => other.unwrap(),
        }
    }
    assert!(stopped > 3, "{stopped}");
    asked.set(0);
    let caught = catch_unwind(AssertUnwindSafe(|| graph.compute(&backend, &|| times(&|| panic!("asked"), 3))));
    assert_eq!(*caught.unwrap_err().downcast::<&str>().unwrap(), "asked");
    graph.compute(&backend, &|| false).unwrap();
    assert!(graph.read(output).unwrap() == whole);
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
        error([3, 7, 1, 1], &|x| x.linear(&matrix, None));
        error([4, 7, 1, 1], &|x| x.linear(&matrix, Some(&bias)));
        error([4, 7, 1, 1], &|x| x.linear(&kernel, None));
        error([7, 7, 3, 1], &|x| x.convolve(&kernel, None, 1, 1));
        error([2, 2, 4, 1], &|x| x.convolve(&kernel, None, 1, 0));
        error([7, 7, 4, 1], &|x| x.convolve(&kernel, None, 0, 0));
        error([7, 7, 4, 1], &|x| x.convolve(&kernel, None, usize::MAX, usize::MAX));
        error([7, 7, 4, 1], &|x| x.permute([1, 0, 2, 3]).linear(&matrix, None));
    }
    // Packed weights are no tensors.
    let backend = Backend::cpu(1).unwrap();
    let matrix = stored(&backend, Some(MapKind::Linear), Dtype::F32, &Array::from_fn([4, 4, 1, 1], |_| 0.0));
    let builder = Builder::new(&backend).unwrap();
    builder.output(builder.weight(&matrix));
    assert!(builder.build(&backend, usize::MAX).is_err());
}
