//! Finds ggml's source, builds it with cmake, and makes the raw bindings.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package that carries ggml's source, and where in it.
const CARRIER: &str = "llama-cpp-sys-2";
const SOURCE_IN_CARRIER: &str = "llama.cpp/ggml";

fn main() {
    println!("cargo:rerun-if-env-changed=GGML_SOURCE_DIR");
    for file in ["build.rs", "CMakeLists.txt", "wrapper.h", "vulkan-shim/vulkan/vulkan.hpp"] {
        println!("cargo:rerun-if-changed={file}");
    }
    let source = source_dir();
    build(&source);
    bind(&source);
}

fn feature(name: &str) -> bool {
    env::var_os(format!("CARGO_FEATURE_{}", name.to_uppercase())).is_some()
}

/// `GGML_SOURCE_DIR`, else the folder inside the pinned package, as `cargo metadata` names it.
fn source_dir() -> PathBuf {
    if let Some(dir) = env::var_os("GGML_SOURCE_DIR") {
        return dir.into();
    }
    // Offline first: the package is usually there already, and a build should not need a network.
    let metadata = metadata(&["--offline"])
        .or_else(|| metadata(&[]))
        .expect("cargo metadata tells where the package with ggml's source lies");
    let packages = metadata["packages"].as_array().expect("cargo metadata lists packages");
    let manifest = packages
        .iter()
        .find(|package| package["name"] == CARRIER)
        .and_then(|package| package["manifest_path"].as_str())
        .unwrap_or_else(|| panic!("{CARRIER} is not in Cargo.lock"));
    Path::new(manifest).with_file_name(SOURCE_IN_CARRIER)
}

fn metadata(extra: &[&str]) -> Option<serde_json::Value> {
    let output = Command::new(env::var_os("CARGO")?)
        .args(["metadata", "--format-version", "1"])
        .args(extra)
        .current_dir(env::var_os("CARGO_MANIFEST_DIR")?)
        .output()
        .ok()?;
    output.status.success().then(|| serde_json::from_slice(&output.stdout).ok())?
}

fn build(source: &Path) {
    let on = |enabled: bool| if enabled { "ON" } else { "OFF" };
    let mut config = cmake::Config::new(".");
    config
        .profile("Release")
        .define("GGML_SOURCE_DIR", source)
        .define("BUILD_SHARED_LIBS", "OFF")
        .define("CMAKE_POSITION_INDEPENDENT_CODE", "ON")
        .define("CMAKE_C_VISIBILITY_PRESET", "hidden")
        .define("CMAKE_CXX_VISIBILITY_PRESET", "hidden")
        .define("GGML_CCACHE", "OFF")
        .define("GGML_OPENMP", "OFF")
        .define("GGML_BLAS", "OFF")
        .define("GGML_ACCELERATE", "OFF")
        .define("GGML_CPU_REPACK", "OFF")
        .define("GGML_LLAMAFILE", "ON")
        .define("GGML_NATIVE", on(feature("native")))
        .define("GGML_VULKAN", on(feature("vulkan")))
        .define("GGML_CUDA", on(feature("cuda")))
        .define("GGML_METAL", on(feature("metal")))
        .define("GGML_METAL_EMBED_LIBRARY", "ON")
        .define("GGML_RPC", on(feature("rpc")));
    if !feature("native") {
        // The portable baseline: x86-64-v2 (or plain AArch64, where these mean nothing).
        config.define("GGML_SSE42", "ON");
        for extension in ["AVX", "AVX2", "FMA", "F16C", "BMI2"] {
            config.define(format!("GGML_{extension}"), "OFF");
        }
    }
    if feature("vulkan") && !env::var("TARGET").unwrap().contains("msvc") {
        // What the Vulkan headers of older distributions lack; see the file.
        let shim = Path::new(&env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("vulkan-shim");
        config.cxxflag(format!("-I{}", shim.display()));
    }
    if env::var_os("CMAKE_GENERATOR").is_none() && Command::new("ninja").arg("--version").output().is_ok() {
        // cmake's own choice may want what is not there: `make`, as a rule. A folder belongs to one generator.
        let folder = Path::new(&env::var_os("OUT_DIR").unwrap()).join("ninja");
        std::fs::create_dir_all(&folder).expect("OUT_DIR is writable");
        config.generator("Ninja").out_dir(folder);
    }
    let out = config.build_target("all").build().join("build");

    for dir in ["ggml/src", "ggml/src/ggml-vulkan", "ggml/src/ggml-cuda", "ggml/src/ggml-metal", "ggml/src/ggml-rpc"] {
        println!("cargo:rustc-link-search=native={}", out.join(dir).display());
        // Visual Studio's projects have a folder for each configuration.
        println!("cargo:rustc-link-search=native={}", out.join(dir).join("Release").display());
    }
    // Users before what they use, for linkers that read each library once.
    println!("cargo:rustc-link-lib=static=ggml");
    for backend in ["vulkan", "cuda", "metal", "rpc"] {
        if feature(backend) {
            println!("cargo:rustc-link-lib=static=ggml-{backend}");
        }
    }
    println!("cargo:rustc-link-lib=static=ggml-cpu");
    println!("cargo:rustc-link-lib=static=ggml-base");

    let target = env::var("TARGET").unwrap();
    if feature("vulkan") {
        println!("cargo:rustc-link-lib={}", if target.contains("windows") { "vulkan-1" } else { "vulkan" });
    }
    if feature("cuda") {
        for library in ["cudart", "cublas", "cublasLt", "cuda"] {
            println!("cargo:rustc-link-lib={library}");
        }
    }
    if feature("metal") {
        for framework in ["Foundation", "Metal", "MetalKit"] {
            println!("cargo:rustc-link-lib=framework={framework}");
        }
    }
    if target.contains("apple") {
        println!("cargo:rustc-link-lib=c++");
    } else if target.contains("windows-msvc") {
        println!("cargo:rustc-link-lib=advapi32");
        if feature("rpc") {
            println!("cargo:rustc-link-lib=ws2_32");
        }
    } else {
        println!("cargo:rustc-link-lib=stdc++");
    }
}

fn bind(source: &Path) {
    let mut builder = bindgen::Builder::default()
        .header("wrapper.h")
        .clang_arg(format!("-I{}", source.join("include").display()))
        .clang_arg("-DGGML_MAX_NAME=128")
        .allowlist_function("ggml_.*")
        .allowlist_type("ggml_.*")
        .allowlist_var("GGML_.*|RPC_PROTO_.*")
        .prepend_enum_name(false)
        .generate_comments(false)
        .layout_tests(false);
    if feature("rpc") {
        builder = builder.clang_arg("-DSCUMBLE_RPC");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap()).join("bindings.rs");
    builder.generate().expect("bindgen reads ggml's headers").write_to_file(out).expect("OUT_DIR is writable");
}
