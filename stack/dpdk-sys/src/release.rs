//! What differs between the releases of DPDK that uwarp builds with: 22.11, 24.11 and 25.11.

/// Year and month of the DPDK that this was built with.
pub const RELEASE: (u32, u32) = include!(concat!(env!("OUT_DIR"), "/release.rs"));

/// Whether EAL takes `--single-file-segments` beside `--no-huge`. DPDK 25.11 refuses the pair; `--no-huge` alone puts
/// the memory into one file there, as before. But a memif client's zero-copy looks for the argument, so there it needs
/// hugepages.
pub const SINGLE_FILES_WITHOUT_HUGEPAGES: bool = is_before(25, 11);

/// EAL's arguments that are followed by a value: `--name=value`, or the next word. Those of all releases.
pub const ARGUMENTS_WITH_VALUE: &[&str] = &[
    "--allow",
    "-a",
    "--base-virtaddr",
    "--block",
    "-b",
    "--coremask",
    "-c",
    "--driver-path",
    "-d",
    "--force-max-simd-bitwidth",
    "--file-prefix",
    "--huge-dir",
    "--iova-mode",
    "--lcores",
    "-l",
    "--log-level",
    "--main-lcore",
    "--mbuf-pool-ops-name",
    "--memory-channels",
    "-n",
    "--memory-ranks",
    "-r",
    "--memory-size",
    "-m",
    "--numa-limit",
    "--numa-mem",
    "--proc-type",
    "--service-corelist",
    "-S",
    "--service-coremask",
    "-s",
    "--socket-limit",
    "--socket-mem",
    "--trace",
    "--trace-bufsz",
    "--trace-dir",
    "--trace-mode",
    "--vdev",
    "--vfio-intr",
    "--vfio-vf-token",
];

/// EAL's arguments that have no value, or one behind a `=`. Those that print something and end the program are left
/// out.
pub const ARGUMENTS_ALONE: &[&str] = &[
    "--create-uio-dev",
    "--huge-unlink",
    "--huge-worker-stack",
    "--in-memory",
    "--legacy-mem",
    "--log-color",
    "--log-timestamp",
    "--match-allocations",
    "--no-hpet",
    "--no-huge",
    "--no-pci",
    "--no-shconf",
    "--no-telemetry",
    "--remap-lcore-ids",
    "-R",
    "--single-file-segments",
    "--syslog",
    "--telemetry",
    "--vmware-tsc-map",
];

const fn is_before(year: u32, month: u32) -> bool {
    RELEASE.0 < year || RELEASE.0 == year && RELEASE.1 < month
}
