//! The raw bindings, made by bindgen from ggml's own headers.

#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(missing_docs, clippy::all, dead_code, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
