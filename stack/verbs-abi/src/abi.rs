//! The types of `infiniband/verbs.h` and `rdma/rdma_cma.h`, as bindgen reads them from the system's headers.

#![allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, dead_code)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks, unnecessary_transmutes, rustdoc::all)]

include!(concat!(env!("OUT_DIR"), "/abi.rs"));
