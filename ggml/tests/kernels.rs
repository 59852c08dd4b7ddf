//! Our own kernels, every variant that this processor has, against their definitions.

use ggml::Dtype;
use ggml::kernels::{Isa, Panels, Part, Scratch, product};

/// Numbers in -1…1, the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        // Knuth's MMIX generator.
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }

    fn below(&mut self, count: usize) -> usize {
        ((self.next() + 1.0) / 2.0 * count as f32) as usize % count
    }
}

/// Weights `[outputs, inputs, taps]` as they are stored.
struct Weights {
    outputs: usize,
    inputs: usize,
    taps: usize,
    values: Vec<f32>,
    dtype: Dtype,
}

impl Weights {
    fn random(random: &mut Random, outputs: usize, inputs: usize, taps: usize, dtype: Dtype) -> Self {
        let mut values = random.values(outputs * inputs * taps);
        if dtype == Dtype::F16 {
            values.iter_mut().for_each(|value| *value = half::f16::from_f32(*value).to_f32());
        }
        Self { outputs, inputs, taps, values, dtype }
    }

    fn packed(&self, isa: Isa) -> Panels {
        let bytes: Vec<u8> = match self.dtype {
            Dtype::F16 => self.values.iter().flat_map(|&value| half::f16::from_f32(value).to_ne_bytes()).collect(),
            _ => self.values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
        };
        let mut panels = Panels::zeros(isa, self.dtype, self.outputs, self.inputs, self.taps).unwrap();
        // In two pieces, as a file is read.
        let (first, second) = bytes.split_at(bytes.len() / 3 / self.dtype.size() * self.dtype.size());
        panels.write(first.len(), second).unwrap();
        panels.write(0, first).unwrap();
        panels
    }

    /// What [`product`] is to add, in double precision, and the sum of the magnitudes.
    fn naive(
        &self,
        x: &[f32],
        source: &dyn Fn(usize, usize) -> Option<usize>,
        row: usize,
        output: usize,
    ) -> (f64, f64) {
        let mut sum = (0.0, 0.0);
        for (tap, from) in (0..self.taps).filter_map(|tap| Some((tap, source(row, tap)?))) {
            for input in 0..self.inputs {
                let weight = self.values[(output * self.inputs + input) * self.taps + tap];
                let term = f64::from(weight) * f64::from(x[from * self.inputs + input]);
                sum = (sum.0 + term, sum.1 + term.abs());
            }
        }
        sum
    }
}

const SIZES: [usize; 8] = [1, 3, 7, 16, 31, 33, 64, 257];

#[test]
fn products_are_those_of_the_definition() {
    let mut random = Random(1);
    for isa in Isa::available() {
        let mut scratch = Scratch::default();
        for case in 0..120 {
            let taps = [1, 1, 2, 9][random.below(4)];
            let [outputs, inputs, rows] = [(); 3].map(|()| SIZES[random.below(SIZES.len())]);
            let dtype = [Dtype::F32, Dtype::F16][case % 2];
            let weights = Weights::random(&mut random, outputs, inputs, taps, dtype);
            let before = 1 + random.below(5);
            // Rows begin wherever they like.
            let x = random.values(before + (rows + 2) * inputs);
            let x = &x[before..];
            let places: Vec<_> =
                (0..rows * taps).map(|_| (random.below(6) > 0).then(|| random.below(rows + 2))).collect();
            let source = |row: usize, tap: usize| places[row * taps + tap];
            let start = random.values(rows * outputs);
            let mut y = start.clone();
            let panels = weights.packed(isa);
            let all = Part { rows: 0..rows, panels: 0..panels.count() };
            product(&panels, x, &source, &mut y, all, &mut scratch).unwrap();
            for row in 0..rows {
                for output in 0..outputs {
                    let (sum, magnitude) = weights.naive(x, &source, row, output);
                    let (found, first) =
                        (f64::from(y[row * outputs + output]), f64::from(start[row * outputs + output]));
                    let error = (found - (first + sum)).abs();
                    let place =
                        format!("{isa} {dtype:?} {outputs}×{inputs}×{taps}, row {row} of {rows}, output {output}");
                    assert!(error <= 1e-6 * (magnitude + first.abs()), "{place}: {found} is off by {error}");
                }
            }
        }
    }
}

/// Parts, in any order and of any size, leave the same bytes as the whole.
#[test]
fn bytes_do_not_depend_on_the_division() {
    let mut random = Random(2);
    for isa in Isa::available() {
        let weights = Weights::random(&mut random, 77, 300, 9, Dtype::F16);
        let panels = weights.packed(isa);
        let rows = 41;
        let x = random.values(rows * 300);
        let source = |row: usize, tap: usize| (row + tap).checked_sub(4).filter(|&from| from < rows);
        let run = |parts: &[Part]| {
            let mut y = vec![0.5; rows * 77];
            for part in parts {
                product(&panels, &x, &source, &mut y, part.clone(), &mut Scratch::default()).unwrap();
            }
            y
        };
        let whole = run(&[Part { rows: 0..rows, panels: 0..panels.count() }]);
        for size in [1, 2, 5, 13] {
            let mut parts = Vec::new();
            for first in (0..rows).step_by(size).rev() {
                for panel in 0..panels.count() {
                    parts.push(Part { rows: first..rows.min(first + size), panels: panel..panel + 1 });
                }
            }
            assert_eq!(run(&parts), whole, "{isa}, {size} rows at a time");
        }
    }
}

#[test]
fn what_lies_outside_is_refused() {
    let weights = Weights::random(&mut Random(3), 5, 4, 1, Dtype::F32);
    let panels = weights.packed(Isa::BASELINE);
    let mut y = vec![0.0; 3 * 5];
    let mut run = |rows, count, source: &dyn Fn(usize, usize) -> Option<usize>| {
        let part = Part { rows: 0..rows, panels: 0..count };
        product(&panels, &[1.0; 8], source, &mut y, part, &mut Scratch::default())
    };
    assert!(run(3, 1, &|_, _| Some(1)).is_ok());
    assert!(run(3, 1, &|_, _| Some(2)).is_err());
    assert!(run(3, 1, &|_, _| Some(usize::MAX)).is_err());
    assert!(run(4, 1, &|_, _| None).is_err());
    assert!(run(3, 2, &|_, _| None).is_err());
    let mut panels = Panels::zeros(Isa::BASELINE, Dtype::F32, 2, 2, 1).unwrap();
    assert!(panels.write(0, &[0; 16]).is_ok());
    assert!(panels.write(4, &[0; 16]).is_err());
    assert!(panels.write(0, &[0; 15]).is_err());
    assert!(panels.write(2, &[0; 4]).is_err());
    assert!(panels.write(usize::MAX, &[0; 4]).is_err());
    assert!(Panels::zeros(Isa::BASELINE, Dtype::F32, usize::MAX, 2, 1).is_err());
    assert!(Panels::zeros(Isa::BASELINE, Dtype::I32, 2, 2, 1).is_err());
}
