//! Finds DPDK, generates bindings for the part in use, and compiles the shim for functions that C only has inline.

use std::env;
use std::path::PathBuf;
use std::process::{Command, exit};

const INSTALL: &str = "on Debian and Ubuntu: apt-get install libdpdk-dev libclang-dev clang pkg-config";

/// The libraries that our code calls. EAL loads every driver as a plug-in, so only the virtual bus, net_ring and
/// net_vhost, which have functions of their own, are named here.
const LIBRARIES: &[&str] = &[
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

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
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
    let output = Command::new("pkg-config").args(["--cflags", "libdpdk"]).output();
    let flags: Vec<String> = match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect()
        }
        _ => fail("pkg-config --cflags libdpdk failed"),
    };

    for path in &dpdk.link_paths {
        println!("cargo::rustc-link-search=native={}", path.display());
    }

    let mut shim = cc::Build::new();
    shim.file("shim/shim.c").opt_level(3).warnings(true);
    for flag in &flags {
        shim.flag(flag);
    }
    if let Err(error) = shim.try_compile("uwarp_dpdk_shim") {
        fail(&format!("the C shim over DPDK does not compile ({error})"));
    }
    for library in LIBRARIES {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
    // In DPDK 22.11 its functions are in rte_eal.
    if dpdk.libs.iter().any(|library| library == "rte_log") {
        println!("cargo::rustc-link-lib=dylib=rte_log");
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
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("bindings.rs");
    if let Err(error) = bindings.write_to_file(&out) {
        fail(&format!("{} cannot be written ({error})", out.display()));
    }
}
