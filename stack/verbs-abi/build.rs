//! Generates the types of the verbs and of rdma_cm from the system's headers.

use std::env;
use std::path::PathBuf;
use std::process::exit;

const INSTALL: &str = "on Debian and Ubuntu: apt-get install libibverbs-dev librdmacm-dev libclang-dev";

fn fail(message: &str) -> ! {
    println!("cargo::error={message}; {INSTALL}");
    exit(1)
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=headers.h");
    // bindgen panics if it does not find libclang; the message below is enough.
    std::panic::set_hook(Box::new(|_| ()));
    let bindings = std::panic::catch_unwind(|| {
        bindgen::Builder::default()
            .header("headers.h")
            .allowlist_type("ibv_.*|verbs_context|rdma_.*|_compat_ibv_port_attr|sockaddr.*")
            .allowlist_var("IBV_.*|RDMA_.*|RAI_.*")
            .blocklist_function(".*")
            .derive_default(true)
            .layout_tests(true)
            .generate_comments(false)
            .prepend_enum_name(false)
            .generate()
    });
    let _ = std::panic::take_hook();
    let bindings = match bindings {
        Ok(Ok(bindings)) => bindings,
        Ok(Err(error)) => {
            fail(&format!("bindings for the headers of libibverbs and librdmacm cannot be made ({error})"))
        }
        Err(_) => fail("libclang is missing (bindgen cannot load it)"),
    };
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("abi.rs");
    if let Err(error) = bindings.write_to_file(&out) {
        fail(&format!("{} cannot be written ({error})", out.display()));
    }
}
