//! How graphs, storages and back ends live, stop and end.

mod naive;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ggml::{Activation, Backend, Builder, Dtype, Error, Graph, Slot, Storage};
use naive::Random;

const GO_ON: &dyn Fn() -> bool = &|| false;

/// `y = (…((x + 1) + 1)…) + 1`, of `length` ops.
fn chain(backend: &Backend, length: usize) -> (Graph, Slot, Slot) {
    let builder = Builder::new(backend).unwrap();
    let (x, input) = builder.input(Dtype::F32, [3, 1, 1, 1]);
    let y = (0..length).fold(x, |y, _| y.scale(1.0, 1.0));
    let output = builder.output(y);
    (builder.build(backend, usize::MAX).unwrap(), input, output)
}

#[test]
fn thread_counts() {
    for threads in [0, 1, 3, 64] {
        let backend = Backend::cpu(threads).unwrap();
        assert!(backend.threads() == threads || threads == 0 && backend.threads() > 0);
        assert!(backend.is_cpu() && backend.name() == "CPU");
    }
    for threads in [513, 1000, usize::MAX] {
        assert!(Backend::cpu(threads).is_err());
    }
    assert!(Backend::open("cpu", 2).unwrap().is_cpu());
    for name in ["", "GPU7", "a\0b", "CPU "] {
        assert!(Backend::open(name, 1).is_err());
    }
}

#[test]
fn a_graph_runs_again_and_again() {
    let backend = Backend::cpu(2).unwrap();
    let builder = Builder::new(&backend).unwrap();
    let (x, x_slot) = builder.input(Dtype::F32, [64, 1, 1, 1]);
    let (y, y_slot) = builder.input(Dtype::F32, [64, 1, 1, 1]);
    let output = builder.output(x.add(y).activate(Activation::Silu).tanh().mul(y));
    let mut graph = builder.build(&backend, usize::MAX).unwrap();
    graph.write(x_slot, &[0.5; 64]).unwrap();
    graph.write(y_slot, &[0.25; 64]).unwrap();
    graph.compute(&backend, GO_ON).unwrap();
    let first = graph.read(output).unwrap();
    for _ in 0..10 {
        // Inputs keep what was written into them.
        graph.compute(&backend, GO_ON).unwrap();
        assert_eq!(graph.read(output).unwrap(), first);
    }
    graph.write(x_slot, &[-0.5; 64]).unwrap();
    graph.compute(&backend, GO_ON).unwrap();
    assert_ne!(graph.read(output).unwrap(), first);
    assert_eq!(graph.read(y_slot).unwrap(), [0.25; 64]);
}

#[test]
fn outputs_survive_what_is_computed_after_them() {
    let backend = Backend::cpu(1).unwrap();
    let builder = Builder::new(&backend).unwrap();
    let (x, input) = builder.input(Dtype::F32, [8, 4, 1, 1]);
    let early = x.scale(2.0, 0.0);
    // Views of what goes on to be computed with, and one of an input.
    let view = builder.output(early.reshape([32, 1, 1, 1]));
    let turned = builder.output(early.permute([1, 0, 2, 3]));
    let slice = builder.output(x.narrow(1, 1, 2));
    let same = builder.output(x);
    // A view that is a result and goes on: once it has been used, nothing else asks for its source.
    let passed_through = x.scale(3.0, 0.0).reshape([16, 2, 1, 1]);
    let passed = builder.output(passed_through);
    let mut late = early.reshape([4, 8, 1, 1]).add(passed_through.scale(0.0, 0.0).reshape([4, 8, 1, 1]));
    for _ in 0..20 {
        late = late.scale(1.0, 1.0).activate(Activation::Relu).reshape([8, 4, 1, 1]).pad(0, 0);
    }
    let late = builder.output(late);
    let mut graph = builder.build(&backend, usize::MAX).unwrap();
    let data: Vec<f32> = (0..32).map(|i| i as f32).collect();
    graph.write(input, &data).unwrap();
    for _ in 0..2 {
        graph.compute(&backend, GO_ON).unwrap();
        assert_eq!(graph.read(view).unwrap(), data.iter().map(|x| 2.0 * x).collect::<Vec<_>>());
        assert_eq!(graph.read(turned).unwrap()[..5], [0.0, 16.0, 32.0, 48.0, 2.0]);
        assert_eq!(graph.read(slice).unwrap(), data[8..24]);
        assert_eq!(graph.read(passed).unwrap(), data.iter().map(|x| 3.0 * x).collect::<Vec<_>>());
        assert_eq!(graph.read(same).unwrap(), data);
        assert_eq!(graph.read(late).unwrap(), data.iter().map(|x| 2.0 * x + 20.0).collect::<Vec<_>>());
    }
}

#[test]
fn slots_of_the_wrong_kind_or_length() {
    let backend = Backend::cpu(1).unwrap();
    let (mut graph, input, output) = chain(&backend, 2);
    for length in [0, 2, 4] {
        assert!(matches!(graph.write(input, &vec![0.0; length]), Err(Error::Length { .. })));
        assert!(graph.read_into(output, &mut vec![0.0; length]).is_err());
    }
    assert!(graph.write_indices(input, &[0; 3]).is_err());
    assert!(graph.write(output, &[0.0; 3]).is_err(), "an output is not written");
    assert!(graph.read(output).is_err(), "nothing was computed yet");
    // A slot of a larger graph.
    let builder = Builder::new(&backend).unwrap();
    let slot = (0..9).map(|_| builder.input(Dtype::F32, [1; 4]).1).last().unwrap();
    assert!(graph.write(slot, &[0.0]).is_err() && graph.read(slot).is_err());
    // Nothing of this did harm.
    graph.write(input, &[0.0, 1.0, 2.0]).unwrap();
    graph.compute(&backend, GO_ON).unwrap();
    assert_eq!(graph.read(output).unwrap(), [2.0, 3.0, 4.0]);
}

#[test]
fn tensors_of_two_graphs_do_not_mix() {
    let backend = Backend::cpu(1).unwrap();
    let (one, two) = (Builder::new(&backend).unwrap(), Builder::new(&backend).unwrap());
    one.output(one.input(Dtype::F32, [1; 4]).0.add(two.input(Dtype::F32, [1; 4]).0));
    assert!(one.build(&backend, usize::MAX).is_err());
    assert!(two.build(&backend, usize::MAX).is_err());
    let (one, two) = (Builder::new(&backend).unwrap(), Builder::new(&backend).unwrap());
    one.output(two.input(Dtype::F32, [1; 4]).0);
    assert!(one.build(&backend, usize::MAX).is_err());
}

#[test]
fn stopping() {
    let backend = Backend::cpu_with(2, None).unwrap();
    let (mut graph, input, output) = chain(&backend, 9);
    graph.write(input, &[0.0; 3]).unwrap();
    assert_eq!(graph.compute(&backend, &|| true), Err(Error::Stopped));
    for at in [2, 3, 9] {
        let asked = Cell::new(0);
        let stop = || {
            asked.set(asked.get() + 1);
            asked.get() == at
        };
        assert_eq!(graph.compute(&backend, &stop), Err(Error::Stopped));
        assert_eq!(asked.get(), at, "nothing runs after it was stopped");
        assert!(graph.read(output).is_err(), "half a result is none");
    }
    graph.compute(&backend, GO_ON).unwrap();
    assert_eq!(graph.read(output).unwrap(), [9.0; 3]);
}

#[test]
fn a_panic_while_asked_comes_through() {
    let backend = Backend::cpu_with(2, None).unwrap();
    let (mut graph, _, output) = chain(&backend, 9);
    for at in [1, 4] {
        let asked = Cell::new(0);
        let stop = || {
            asked.set(asked.get() + 1);
            if asked.get() == at { std::panic::panic_any("the host's own fault") } else { false }
        };
        let result = catch_unwind(AssertUnwindSafe(|| graph.compute(&backend, &stop)));
        assert_eq!(result.unwrap_err().downcast_ref(), Some(&"the host's own fault"));
        assert_eq!(asked.get(), at);
    }
    graph.compute(&backend, GO_ON).unwrap();
    assert_eq!(graph.read(output).unwrap(), [9.0; 3]);
}

#[test]
fn memory_limits() {
    let backend = Backend::cpu(1).unwrap();
    let build = |limit| {
        let builder = Builder::new(&backend).unwrap();
        let output = builder.input(Dtype::F32, [1024, 1024, 1, 1]).0.activate(Activation::Silu);
        builder.output(output);
        builder.build(&backend, limit)
    };
    let bytes = build(usize::MAX).unwrap().bytes();
    assert!((8 << 20..9 << 20).contains(&bytes), "{bytes}");
    assert!(build(bytes).is_ok());
    assert_eq!(build(bytes - 1).err(), Some(Error::Alloc { what: "graph", bytes }));
    // What no machine has.
    let builder = Builder::new(&backend).unwrap();
    for _ in 0..200 {
        builder.output(builder.input(Dtype::F32, [1 << 30, 1, 1, 1]).0);
    }
    assert!(matches!(builder.build(&backend, 1 << 40), Err(Error::Alloc { .. })));
    let storage = Storage::new();
    // The first ones could be had, and are given back.
    let size = |i| if i < 5000 { 1 } else { 1 << 30 };
    let weights: Vec<_> = (0..1 << 18).map(|i| storage.add(Dtype::F32, [size(i), 1, 1, 1]).unwrap()).collect();
    for _ in 0..2 {
        assert!(matches!(storage.allocate(&backend), Err(Error::Alloc { .. })), "2⁵⁰ bytes");
        assert!(weights[0].write(0, &[0]).is_err() && weights[9999].write(0, &[0]).is_err());
    }
}

#[test]
fn long_chains_and_many_tensors() {
    let backend = Backend::cpu(1).unwrap();
    // On a small stack: ggml itself would call itself once for each op.
    let deep = std::thread::Builder::new().stack_size(256 << 10).spawn(|| {
        let backend = Backend::cpu(1).unwrap();
        let (mut graph, _, output) = chain(&backend, 60_000);
        graph.compute(&backend, GO_ON).unwrap();
        assert_eq!(graph.read(output).unwrap(), [60_000.0; 3]);
    });
    deep.unwrap().join().unwrap();
    // Many inputs, each used once.
    let builder = Builder::new(&backend).unwrap();
    let (sum, _) = builder.input(Dtype::F32, [4, 1, 1, 1]);
    let storage = Storage::new();
    let weights: Vec<_> = (0..6000).map(|_| storage.add(Dtype::F32, [4, 1, 1, 1]).unwrap()).collect();
    storage.allocate(&backend).unwrap();
    for weight in &weights {
        weight.write(0, &[1f32; 4].map(f32::to_le_bytes).concat()).unwrap();
    }
    let output = builder.output(weights.iter().fold(sum, |sum, weight| sum.add(builder.weight(weight))));
    let mut graph = builder.build(&backend, usize::MAX).unwrap();
    graph.compute(&backend, GO_ON).unwrap();
    assert_eq!(graph.read(output).unwrap(), [6000.0; 4]);
}

/// ggml's allocator has a fixed number of places for gaps, and aborts when they run out.
#[test]
fn too_many_tensors_alive_at_once() {
    let backend = Backend::cpu(1).unwrap();
    for (kept, fits) in [(100, true), (600, false)] {
        let builder = Builder::new(&backend).unwrap();
        let (x, _) = builder.input(Dtype::F32, [64, 1, 1, 1]);
        let mut passing = Vec::new();
        for i in 0..kept {
            builder.output(x.scale(i as f32, 0.0));
            passing.push(x.scale(1.0, i as f32));
        }
        builder.output(passing.into_iter().reduce(|sum, x| sum.add(x)).unwrap());
        let built = builder.build(&backend, usize::MAX);
        assert_eq!(built.is_ok(), fits, "{:?}", built.err());
    }
}

#[test]
fn an_empty_graph_runs() {
    let backend = Backend::cpu(2).unwrap();
    let mut graph = Builder::new(&backend).unwrap().build(&backend, 0).unwrap();
    graph.compute(&backend, GO_ON).unwrap();
    let builder = Builder::new(&backend).unwrap();
    let (_, unused) = builder.input(Dtype::F32, [2, 1, 1, 1]);
    let mut graph = builder.build(&backend, usize::MAX).unwrap();
    graph.write(unused, &[1.0, 2.0]).unwrap();
    graph.compute(&backend, GO_ON).unwrap();
    assert_eq!(graph.read(unused).unwrap(), [1.0, 2.0]);
}

#[test]
fn storages() {
    let backend = Backend::cpu(1).unwrap();
    let storage = Storage::new();
    let weight = storage.add(Dtype::F32, [4, 1, 1, 1]).unwrap();
    let other = storage.add(Dtype::F16, [3, 1, 1, 1]).unwrap();
    assert!(weight.write(0, &[0; 16]).is_err(), "no memory yet");
    let builder = Builder::new(&backend).unwrap();
    builder.output(builder.weight(&weight));
    assert!(builder.build(&backend, usize::MAX).is_err(), "no memory yet");
    assert!(storage.bytes_needed(&backend) >= 22 && storage.bytes() == 0);
    storage.allocate(&backend).unwrap();
    assert!(storage.allocate(&backend).is_err(), "twice");
    assert!(storage.add(Dtype::F32, [1; 4]).is_err(), "too late");
    assert!(storage.bytes() >= 22);
    for (offset, length) in [(0, 17), (16, 1), (15, 2), (usize::MAX, 1), (usize::MAX, 16), (8, 9)] {
        assert!(matches!(weight.write(offset, &vec![0; length]), Err(Error::Length { .. })), "{length} at {offset}");
    }
    assert!(other.write(0, &[0; 7]).is_err());
    weight.write(16, &[]).unwrap();
    let data = [1.0f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat();
    weight.write(0, &data[..5]).unwrap();
    weight.write(5, &data[5..]).unwrap();
    let empty = Storage::new();
    empty.allocate(&backend).unwrap();
    assert!(empty.bytes() == 0 && empty.add(Dtype::F32, [1; 4]).is_err());

    // The graph keeps its weights alive, also when all that made it is gone; a weight may be a result.
    let builder = Builder::new(&backend).unwrap();
    let tensor = builder.weight(&weight);
    let (doubled, plain) = (builder.output(tensor.scale(2.0, 0.0)), builder.output(tensor.narrow(0, 1, 2)));
    let mut graph = builder.build(&backend, usize::MAX).unwrap();
    drop((storage, weight, other, backend));
    let backend = Backend::cpu(1).unwrap();
    graph.compute(&backend, GO_ON).unwrap();
    assert_eq!(graph.read(doubled).unwrap(), [2.0, 4.0, 6.0, 8.0]);
    assert_eq!(graph.read(plain).unwrap(), [2.0, 3.0]);
}

#[test]
fn weights_are_not_written_under_a_running_graph() {
    let backend = Backend::cpu_with(1, None).unwrap();
    let weight = naive::weight(&backend, Dtype::F32, &Random(1).array([4, 1, 1, 1], 1.0));
    let builder = Builder::new(&backend).unwrap();
    builder.output(builder.weight(&weight).scale(1.0, 0.0).scale(1.0, 0.0));
    let mut graph = builder.build(&backend, usize::MAX).unwrap();
    let refusals = Cell::new(0);
    let stop = || {
        refusals.set(refusals.get() + weight.write(0, &[0; 4]).is_err() as usize);
        false
    };
    graph.compute(&backend, &stop).unwrap();
    assert_eq!(refusals.get(), 3, "when it begins, and after each op");
    weight.write(0, &[0; 4]).unwrap();
    catch_unwind(AssertUnwindSafe(|| graph.compute(&backend, &|| weight.write(0, &[0; 4]).is_err() && panic!())))
        .unwrap_err();
    weight.write(0, &[0; 4]).unwrap();
}

/// Two back ends, each with its pool, on threads of their own and over the same weights.
#[test]
fn side_by_side() {
    let weight = naive::weight(&Backend::cpu(1).unwrap(), Dtype::F16, &Random(1).array([65, 33, 1, 1], 1.0));
    let results: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let run = || {
            let backend = Backend::cpu(2).unwrap();
            let mut last = Vec::new();
            for _ in 0..20 {
                let builder = Builder::new(&backend).unwrap();
                let (x, slot) = builder.input(Dtype::F32, [65, 31, 1, 1]);
                let output = builder.output(builder.weight(&weight).matmul(x).activate(Activation::Silu));
                let mut graph = builder.build(&backend, usize::MAX).unwrap();
                graph.write(slot, &Random(2).array([65, 31, 1, 1], 1.0).data).unwrap();
                graph.compute(&backend, GO_ON).unwrap();
                last = graph.read(output).unwrap();
            }
            last
        };
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(results[0] == results[1] && results[0].iter().any(|&x| x != 0.0));
}

/// A graph moves to another thread, and runs there on a back end that has moved, too.
#[test]
fn across_threads() {
    let backend = Backend::cpu(2).unwrap();
    let (mut graph, _, output) = chain(&backend, 3);
    let (graph, backend) = std::thread::spawn(move || {
        graph.compute(&backend, GO_ON).unwrap();
        (graph, backend)
    })
    .join()
    .unwrap();
    drop(backend);
    assert_eq!(graph.read(output).unwrap(), [3.0; 3]);
}

#[test]
fn devices_tell_what_they_are() {
    let devices = ggml::devices();
    let cpu = devices.iter().find(|device| device.kind == ggml::DeviceKind::Cpu).unwrap();
    assert!(cpu.name == "CPU" && cpu.total_bytes > 0 && !cpu.description.is_empty(), "{cpu:?}");
}

/// A half-float weight is widened for its own op only: a chain of layers needs the memory of one.
#[test]
fn widened_weights_do_not_pile_up() {
    const WIDTH: usize = 128;
    const LAYERS: usize = 50;
    let backend = Backend::cpu(1).unwrap();
    let storage = Storage::new();
    let weights: Vec<_> = (0..LAYERS).map(|_| storage.add(Dtype::F16, [WIDTH, WIDTH, 1, 1]).unwrap()).collect();
    storage.allocate(&backend).unwrap();
    let builder = Builder::new(&backend).unwrap();
    let (x, _) = builder.input(Dtype::F32, [WIDTH, 1, 1, 1]);
    let y = weights.iter().fold(x, |x, weight| builder.weight(weight).matmul(x));
    builder.output(y);
    let graph = builder.build(&backend, usize::MAX).unwrap();
    assert!(graph.bytes() < 3 * 4 * WIDTH * WIDTH, "{} bytes", graph.bytes());
}
