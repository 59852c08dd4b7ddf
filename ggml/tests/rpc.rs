//! A graph on a server in a process of its own, over the loopback.

#![cfg(feature = "rpc")]

mod naive;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ggml::{Backend, Builder, Dtype, Error, Picture};
use naive::{Random, close, run_on};

const SERVE: &str = "SCUMBLE_TEST_RPC_SERVE";

/// Ends the server with the test, however that ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_endpoint() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn a_graph_runs_on_a_server() {
    if let Ok(endpoint) = std::env::var(SERVE) {
        panic!("{}", ggml::rpc::serve(&endpoint, 1).unwrap_err());
    }
    let endpoint = free_endpoint();
    let _server = Server(
        Command::new(std::env::current_exe().unwrap())
            .args(["a_graph_runs_on_a_server", "--exact", "--nocapture"])
            .env(SERVE, &endpoint)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let begun = Instant::now();
    while let Err(error) = ggml::rpc::add_rpc_server(&endpoint) {
        assert!(begun.elapsed() < Duration::from_secs(30), "{error}");
        std::thread::sleep(Duration::from_millis(50));
    }
    ggml::rpc::add_rpc_server(&endpoint).unwrap();
    let devices = ggml::devices();
    let remote: Vec<_> = devices.iter().filter(|device| device.description == endpoint).collect();
    assert_eq!(remote.len(), 1, "{devices:?}");

    let far = Backend::open(&remote[0].name, 1).unwrap();
    let near = Backend::cpu(1).unwrap();
    assert!(!far.is_cpu());
    let mut random = Random(1);
    let x = random.array([17, 15, 8, 2], 1.0);
    let kernel = random.array([3, 3, 8, 16], 0.3);
    let vector = random.array([16, 1, 1, 1], 1.0);
    let results = [&far, &near].map(|backend| {
        let weight = naive::weight(backend, Dtype::F32, &kernel);
        let vector = naive::weight(backend, Dtype::F32, &vector);
        run_on(backend, &[&x], |builder, t| {
            let y =
                Picture::new(t[0].conv_2d(builder.weight(&weight), 1, 1)).group_norm(&vector, &vector, 4, 1e-5, true);
            let tokens = y.tokens();
            let mixed = tokens.attention(tokens, tokens, None, 2, 0.3);
            mixed.layer_norm(builder.weight(&vector), builder.weight(&vector), 1e-5)
        })
    });
    close("a block on the server", &results[0], &results[1], 1e-6);

    // What lives there does not run here, and the other way round.
    let weight = naive::weight(&far, Dtype::F32, &kernel);
    let builder = Builder::new(&near).unwrap();
    builder.output(builder.weight(&weight));
    assert!(matches!(builder.build(&near, usize::MAX), Err(Error::Backend(_))));
    let builder = Builder::new(&near).unwrap();
    builder.output(builder.input(Dtype::F32, [4, 1, 1, 1]).0.tanh());
    assert!(builder.build(&far, usize::MAX).is_err());
    let builder = Builder::new(&near).unwrap();
    builder.output(builder.input(Dtype::F32, [4, 1, 1, 1]).0.tanh());
    let mut graph = builder.build(&near, usize::MAX).unwrap();
    assert!(graph.compute(&far, &|| false).is_err());
}

#[test]
fn who_does_not_answer_is_not_added() {
    for endpoint in ["", "localhost", "localhost:", "localhost:x", "localhost:70000", "::1", "a\0b:1", &free_endpoint()]
    {
        assert!(ggml::rpc::add_rpc_server(endpoint).is_err(), "{endpoint}");
    }
    // Somebody answers, in another language, too little, or a later version.
    for answer in
        [&b"HTTP/1.1 400 Bad Request\r\n\r\n and so on and so on"[..], b"", &[28, 0, 0, 0, 0, 0, 0, 0, 200, 0, 0], &{
            let mut newer = [0; 36];
            newer[0] = 28;
            newer[8] = 200;
            newer
        }]
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let answering = std::thread::spawn({
            let answer = answer.to_vec();
            move || {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 33]);
                let _ = stream.write_all(&answer);
            }
        });
        assert!(ggml::rpc::add_rpc_server(&endpoint).is_err());
        answering.join().unwrap();
    }
}
