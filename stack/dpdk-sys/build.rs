//! Finds DPDK, generates bindings for the part in use, and compiles the shim for functions that C only has inline.
//!
//! DPDK's static libraries go into each program, with the drivers of the file `drivers`. `UWARP_DPDK=shared` links the
//! shared ones instead, with all drivers of the installed DPDK.

use std::env;
use std::path::PathBuf;
use std::process::{Command, exit};

const INSTALL: &str = "on Debian and Ubuntu: apt-get install libdpdk-dev libclang-dev clang pkg-config";

/// The shared libraries that our code calls. EAL loads every driver as a plug-in, so only the virtual bus, net_ring and
/// net_vhost, which have functions of their own, are named here.
const SHARED: &[&str] = &[
    "rte_ethdev",
    "rte_mbuf",
    "rte_mempool",
    "rte_ring",
    "rte_eal",
    "rte_bus_vdev",
    "rte_net_ring",
    "rte_net_vhost",
    "rte_vhost",
];

fn fail(message: &str) -> ! {
    println!("cargo::error={message}; {INSTALL}");
    exit(1)
}

/// The year and month of a version.
fn release(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// What pkg-config prints with these arguments.
fn pkg_config(arguments: &[&str]) -> Vec<String> {
    match Command::new("pkg-config").args(arguments).arg("libdpdk").output() {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect()
        }
        _ => fail(&format!("pkg-config {} libdpdk failed", arguments.join(" "))),
    }
}

/// Whether DPDK's static libraries are linked.
fn is_static() -> bool {
    println!("cargo::rerun-if-env-changed=UWARP_DPDK");
    match env::var("UWARP_DPDK").unwrap_or_default().as_str() {
        "" | "static" => true,
        "shared" => false,
        other => fail(&format!("UWARP_DPDK is '{other}', and neither 'static' nor 'shared'")),
    }
}

/// The drivers of a static build.
fn drivers() -> Vec<String> {
    println!("cargo::rerun-if-changed=drivers");
    let text = std::fs::read_to_string("drivers").unwrap_or_else(|error| fail(&format!("the file 'drivers': {error}")));
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

fn link_statically(libraries: &[String]) {
    let folder = PathBuf::from(pkg_config(&["--variable=libdir"]).concat());
    let exists = |name: &str| folder.join(format!("librte_{name}.a")).exists();
    let drivers = drivers();
    if let Some(driver) = drivers.iter().find(|driver| !exists(driver)) {
        fail(&format!("{} has no librte_{driver}.a", folder.display()));
    }
    println!("cargo::rustc-link-search=native={}", folder.display());
    // Not in our library, or the linker would have to take the archives' objects apart from their archives. Drivers
    // announce themselves by constructors, so all of their objects are taken; of the rest, what is called.
    for driver in &drivers {
        println!("cargo::rustc-link-lib=static:-bundle,+whole-archive=rte_{driver}");
    }
    // pkg-config names a library before those that it needs, and for some drivers libraries that Debian does not have.
    for word in pkg_config(&["--static", "--libs-only-l"]) {
        let name = word.strip_prefix("-l:librte_").and_then(|word| word.strip_suffix(".a"));
        if let Some(name) = name.filter(|name| exists(name) && !drivers.iter().any(|driver| driver == name)) {
            println!("cargo::rustc-link-lib=static:-bundle=rte_{name}");
        }
    }
    // What EAL itself needs of other libraries; the shim has its part of libnuma.
    if libraries.iter().any(|library| library == "bsd") {
        println!("cargo::rustc-link-lib=static:-bundle=bsd");
        println!("cargo::rustc-link-lib=static:-bundle=md");
    }
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=shim/numa.c");
    println!("cargo::rerun-if-changed=shim/shim.c");
    println!("cargo::rerun-if-changed=shim/shim.h");
    println!("cargo::rerun-if-changed=shim/bindings.h");

    let dpdk = match pkg_config::Config::new().cargo_metadata(false).probe("libdpdk") {
        Ok(library) if release(&library.version) >= Some((22, 11)) => library,
        Ok(library) => fail(&format!("DPDK {} is too old, 22.11 or later is needed", library.version)),
        Err(pkg_config::Error::Command { .. }) => fail("pkg-config is missing"),
        Err(_) => fail("DPDK 22.11 or later is missing (pkg-config finds no libdpdk)"),
    };
    // pkg-config's own list keeps flags that `probe` drops: the configuration header and the machine's baseline.
    let flags = pkg_config(&["--cflags"]);
    let is_static = is_static();

    let mut shim = cc::Build::new();
    shim.file("shim/shim.c").opt_level(3).warnings(true);
    for flag in &flags {
        shim.flag(flag);
    }
    if is_static {
        shim.define("UWARP_STATIC", None);
    }
    if let Err(error) = shim.try_compile("uwarp_dpdk_shim") {
        fail(&format!("the C shim over DPDK does not compile ({error})"));
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let write = |name: &str, text: String| {
        let file = out.join(name);
        if let Err(error) = std::fs::write(&file, text) {
            fail(&format!("{} cannot be written ({error})", file.display()));
        }
    };
    // It was parsed above.
    write("release.rs", format!("{:?}", release(&dpdk.version).unwrap_or_default()));
    if is_static {
        link_statically(&dpdk.libs);
        write("drivers.rs", format!("&{:?}", drivers()));
    } else {
        for path in &dpdk.link_paths {
            println!("cargo::rustc-link-search=native={}", path.display());
        }
        for library in SHARED {
            println!("cargo::rustc-link-lib=dylib={library}");
        }
        // In DPDK 22.11 its functions are in rte_eal.
        if dpdk.libs.iter().any(|library| library == "rte_log") {
            println!("cargo::rustc-link-lib=dylib=rte_log");
        }
        write("drivers.rs", "&[]".to_owned());
    }

    // bindgen panics if it does not find libclang; the message below is enough.
    std::panic::set_hook(Box::new(|_| ()));
    let bindings = std::panic::catch_unwind(|| {
        bindgen::Builder::default()
            .header("shim/bindings.h")
            .clang_args(&flags)
            .allowlist_function("rte_eal_(init|hotplug_add|hotplug_remove|get_runtime_dir|alarm_set)")
            .allowlist_function("rte_(version|strerror|thread_register|thread_unregister|openlog_stream|log_set_global_level)")
            .allowlist_function("rte_dev_(probe|remove|name)")
            .allowlist_function("rte_vdev_init")
            .allowlist_function(
                "rte_eth_dev_(configure|start|stop|info_get|get_port_by_name|adjust_nb_rx_tx_desc|set_mtu|get_mtu|socket_id|rss_hash_conf_get|rss_reta_query)",
            )
            .allowlist_function("rte_eth_dev_(rx_intr_enable|rx_intr_disable|rx_intr_ctl_q_get_fd|callback_register|callback_unregister)")
            .allowlist_function("rte_eth_(rx|tx)_queue_setup")
            .allowlist_function("rte_eth_(macaddr_get|stats_get|stats_reset|xstats_get|xstats_get_names|promiscuous_enable|allmulticast_enable|from_rings)")
            .allowlist_function("rte_pktmbuf_pool_create")
            .allowlist_function("rte_mempool_(free|avail_count)")
            .allowlist_function("rte_ring_(create|free)")
            .allowlist_function("rte_socket_id_by_idx")
            .allowlist_function("uwarp_.*")
            .allowlist_var("rte_eth_fp_ops")
            .allowlist_var("UWARP_.*")
            .allowlist_var("RTE_(MAX_LCORE|MAX_ETHPORTS|PKTMBUF_HEADROOM|MBUF_PORT_INVALID|MEMPOOL_CACHE_MAX_SIZE|EAL_PMD_PATH|ETH_NAME_MAX_LEN|MAX_QUEUES_PER_PORT)")
            .allowlist_type("rte_(mempool|mempool_cache|ring|eth_fp_ops|eth_conf|eth_dev_info|eth_rxconf|eth_txconf|eth_stats|eth_xstat|eth_xstat_name|ether_addr|eth_rss_conf|eth_rss_reta_entry64)")
            .opaque_type("FILE|_IO_FILE")
            // src/mbuf.rs has it.
            .blocklist_type("rte_mbuf")
            .derive_default(true)
            .layout_tests(true)
            .generate_comments(false)
            .generate_cstr(true)
            .prepend_enum_name(false)
            .generate()
    });
    let _ = std::panic::take_hook();
    let bindings = match bindings {
        Ok(Ok(bindings)) => bindings,
        Ok(Err(error)) => fail(&format!("bindings for DPDK's headers cannot be made ({error})")),
        Err(_) => fail("libclang is missing (bindgen cannot load it)"),
    };
    write("bindings.rs", bindings.to_string());
}
