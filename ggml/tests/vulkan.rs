//! Every op on the first Vulkan device against the CPU. Mesa's software driver will do
//! (`mesa-vulkan-drivers`); compiling its shaders takes a minute or two the first time.

#![cfg(feature = "vulkan")]

mod naive;

use std::process::Command;

use ggml::{Activation, Backend, Dtype, Error, Picture, Tensor};
use naive::{Array, Random, distance, run_on};

const CHILD: &str = "SCUMBLE_TEST_VULKAN";

#[test]
fn every_op_on_the_first_device() {
    if std::env::var_os(CHILD).is_some() {
        return check();
    }
    // Software Vulkan counts as a processor, which ggml passes over unless it is asked for by number.
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["every_op_on_the_first_device", "--exact", "--nocapture"])
        .env("GGML_VK_VISIBLE_DEVICES", "0")
        .env(CHILD, "1")
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

type Op = (&'static str, f64, for<'g> fn(&[Tensor<'g>]) -> Tensor<'g>);

/// Each op, and how far it may be from the CPU's. Products round to half floats on some devices.
const OPS: [Op; 16] = [
    ("add", 1e-6, |t| t[0].add(t[0].narrow(0, 0, 1))),
    ("mul", 1e-6, |t| t[0].mul(t[0])),
    ("scale", 1e-6, |t| t[0].scale(2.0, 1.0)),
    ("silu", 1e-5, |t| t[0].activate(Activation::Silu)),
    ("relu", 0.0, |t| t[0].activate(Activation::Relu)),
    ("tanh", 1e-5, |t| t[0].tanh()),
    ("gelu", 1e-5, |t| t[0].activate(Activation::Gelu)),
    ("geglu", 1e-5, |t| t[0].geglu()),
    ("layer_norm", 1e-5, |t| t[0].layer_norm(t[3], t[3], 1e-5)),
    ("matmul", 2e-3, |t| t[0].matmul(t[0])),
    ("matmul with halves", 2e-3, |t| t[0].cast(Dtype::F16).matmul(t[0])),
    ("conv_2d", 2e-3, |t| t[0].conv_2d(t[1], 1, 1)),
    ("nearest", 0.0, |t| t[0].nearest(64, 60)),
    ("pad and concat", 0.0, |t| t[0].pad(1, 1).concat(t[0].pad(1, 1), 2)),
    ("permute", 0.0, |t| t[0].permute([2, 0, 1, 3]).contiguous()),
    ("attention", 2e-3, |t| t[2].attention(t[2], t[2], None, 8, 0.2)),
];

fn check() {
    let devices = ggml::devices();
    let name = devices.iter().map(|device| &device.name).find(|name| name.starts_with("Vulkan"));
    let name = name.unwrap_or_else(|| panic!("no Vulkan device: install mesa-vulkan-drivers ({devices:?})"));
    // One back end for each op: after some dozen different ones on the same, Mesa 22.3's software driver
    // crashes on its own thread, in an op that runs well alone and hundreds of times.
    let open = || Backend::open(name, 1).unwrap();
    let near = Backend::cpu(2).unwrap();
    let mut random = Random(1);
    let x = random.array([32, 30, 8, 2], 1.0);
    let kernel = random.array([3, 3, 8, 16], 0.3);
    let tokens = random.array([320, 77, 1, 1], 1.0);
    let (row, vector) = (random.array([32, 1, 1, 1], 1.0), random.array([16, 1, 1, 1], 1.0));
    let inputs = [&x, &kernel, &tokens, &row];
    for (op, bound, make) in OPS {
        let [found, expected]: [Array; 2] = [&open(), &near].map(|backend| run_on(backend, &inputs, |_, t| make(t)));
        let off = distance(&found, &expected);
        println!("{op}: {off:.1e}");
        assert!(off <= bound, "{op} is off by {off:.1e}");
    }
    let block = |backend| {
        let weight = naive::weight(backend, Dtype::F16, &kernel);
        let vector = naive::weight(backend, Dtype::F32, &vector);
        run_on(backend, &[&x], |builder, t| {
            let y =
                Picture::new(t[0].conv_2d(builder.weight(&weight), 1, 1)).group_norm(&vector, &vector, 4, 1e-5, true);
            let tokens = y.tokens();
            let mixed = tokens.attention(tokens, tokens, None, 2, 0.3);
            mixed.layer_norm(builder.weight(&vector), builder.weight(&vector), 1e-5)
        })
    };
    let far = open();
    let off = distance(&block(&far), &block(&near));
    println!("a block: {off:.1e}");
    assert!(off <= 5e-3, "a block is off by {off:.1e}");

    // What the device can't do is an error by name. (Its kernels take heads in eights.)
    let builder = ggml::Builder::new(&far).unwrap();
    let q = builder.input(Dtype::F32, [7, 4, 1, 1]).0;
    builder.output(q.attention(q, q, None, 1, 1.0));
    match builder.build(&far, usize::MAX) {
        Err(Error::Unsupported { op, .. }) => assert_eq!(op, "FLASH_ATTN_EXT"),
        other => panic!("{:?}", other.err()),
    }
}
