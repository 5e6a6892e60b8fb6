//! Large programs that connect queue pairs themselves, unmodified: UCX and the two MPIs over it, of Debian 13 in a root
//! of its own, and Mooncake's wheel. All come from the network, so these are tests of the long run.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use uwarp_verbs_tests::{ADDRESS, Ended, Host, Running, binaries};

const LIMIT: Duration = Duration::from_secs(120);
/// Enters a root with a namespace of mounts that shows it the files of these tests.
const ENTER: &str = r#"
root=$1 tools=$2 sources=$3 home=$4; shift 4
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"; mount --rbind /sys "$root/sys"; mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"; mount -t tmpfs tmpfs "$root/run"
for folder in "$tools" "$sources" "$home"; do
    mkdir -p "$root/$folder"
    mount --bind "$folder" "$root/$folder"
done
exec chroot "$root" sh -ec 'cd "$HOME"; exec "$@"' sh "$@"
"#;
/// Where UCX's processes leave it, they exchange addresses over the kernel's TCP.
const TRANSPORTS: (&str, &str) = ("UCX_TLS", "rc_verbs,tcp");
const MPI_AS_ROOT: [(&str, &str); 2] = [("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")];

/// Debian 13 on a host of its own.
struct Debian13 {
    host: Host,
    root: String,
}

impl Debian13 {
    fn new(purpose: &str) -> Debian13 {
        let made = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("root")).output().expect("bash");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let root = String::from_utf8(made.stdout).expect("a path").trim().to_owned();
        Debian13 { host: Host::new(purpose), root }
    }

    #[track_caller]
    fn run(&self, variables: &[(&str, &str)], words: &[&str]) -> String {
        let (tools, home) = (binaries(), self.host.directory());
        let folders = [Path::new(&self.root), &tools, Path::new(env!("CARGO_MANIFEST_DIR")), home];
        let folders = folders.map(|folder| folder.to_str().expect("a path"));
        let variables = [variables, &MPI_AS_ROOT, &[TRANSPORTS]].concat();
        let enter = ["unshare", "--mount", "sh", "-ec", ENTER, "sh"];
        let started = self.host.start_with(&variables, &[&enter[..], &folders, words].concat());
        started.wait_within(LIMIT).succeeded().to_owned()
    }

    /// Behind `uwarp-run --roce`.
    #[track_caller]
    fn uwarp_run(&self, variables: &[(&str, &str)], words: &[&str]) -> String {
        let run = binaries().join("uwarp-run");
        self.run(variables, &[&[run.to_str().expect("a path"), "--roce"], words].concat())
    }

    /// Compiles one of the programs in C.
    fn compile(&self, compiler: &str, name: &str, libraries: &[&str]) {
        let source = format!("{}/c/{name}.c", env!("CARGO_MANIFEST_DIR"));
        let flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-o", name, &source];
        self.run(&[], &[&[compiler], &flags[..], libraries].concat());
    }
}

#[test]
fn ucx_by_rc_verbs_has_all_data_right() {
    let debian = Debian13::new("ucx");
    debian.compile("gcc", "ucx", &["-lucp", "-lucs"]);
    let said = debian.uwarp_run(&[], &["./ucx", "worker"]);
    assert_eq!(said.matches("all data is right").count(), 2, "{said}");
    assert!(said.contains("rc_verbs/uwarp0:1"), "{said}");
}

/// Debian's is built with MPI, which has to start its two processes.
#[test]
fn ucx_perftest_by_rc_verbs() {
    let debian = Debian13::new("ucx-perf");
    let by_mpi = [("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", "self,sm")];
    for test in ["tag_lat", "tag_bw", "ucp_put_lat", "ucp_put_bw", "ucp_get", "ucp_am_lat", "ucp_am_bw", "ucp_fadd"] {
        for size in ["8", "100000"].into_iter().filter(|size| test != "ucp_fadd" || *size == "8") {
            let start = ["mpirun.openmpi", "--map-by", ":OVERSUBSCRIBE", "-np", "2", "ucx_perftest", "-f"];
            let said =
                debian.uwarp_run(&by_mpi, &[&start[..], &["-n", "500", "-w", "50", "-t", test, "-s", size]].concat());
            assert!(said.lines().any(|line| line.trim_start().starts_with("500 ")), "{test} {size}: {said}");
        }
    }
}

#[test]
fn open_mpi_over_ucx_has_all_data_right() {
    let debian = Debian13::new("ompi");
    debian.compile("mpicc.openmpi", "mpi", &[]);
    for ranks in ["2", "4", "16"] {
        let start = ["mpirun.openmpi", "--map-by", ":OVERSUBSCRIBE", "--mca", "pml", "ucx", "--mca", "osc", "ucx"];
        let said = debian.uwarp_run(&[("UCX_LOG_LEVEL", "info")], &[&start[..], &["-np", ranks, "./mpi"]].concat());
        assert!(said.contains(&format!("{ranks} ranks: all data is right")), "{said}");
        assert!(said.contains("intra-node cfg#1 tag(rc_verbs/uwarp0:1)"), "{said}");
    }
}

#[test]
fn mpich_has_all_data_right() {
    let debian = Debian13::new("mpich");
    debian.compile("mpicc.mpich", "mpi", &[]);
    for ranks in ["2", "4", "16"] {
        let said = debian.uwarp_run(&[("UCX_LOG_LEVEL", "info")], &["mpiexec.mpich", "-n", ranks, "./mpi"]);
        assert!(said.contains(&format!("{ranks} ranks: all data is right")), "{said}");
        assert!(said.contains("intra-node cfg#0 tag(rc_verbs/uwarp0:1)"), "{said}");
    }
}

#[test]
fn mooncake_writes_and_reads_what_it_should() {
    const WHEEL: &str = "mooncake-transfer-engine-non-cuda==0.3.13.post1";
    let host = Host::new("mooncake");
    let packages = host.directory().join("packages");
    let packages = packages.to_str().expect("a path");
    // Outside of the host, which has no network.
    let mut get = Command::new("python3");
    get.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target", packages, WHEEL]);
    let got = get.output().expect("python3");
    assert!(got.status.success(), "{}", String::from_utf8_lossy(&got.stderr));
    let run = binaries().join("uwarp-run");
    let run = run.to_str().expect("a path");
    let program = format!("{}/transfer_engine.py", env!("CARGO_MANIFEST_DIR"));
    let words = [run, "--roce", "python3", &program, ADDRESS];
    let Ended { status, output } = host.start_with(&[("PYTHONPATH", packages)], &words).wait_within(LIMIT);
    assert!(status.success() && output.contains("all data is right"), "{status}\n{output}");

    let bench = format!("{packages}/mooncake/transfer_engine_bench");
    let common = [run, "--roce", &bench, "--metadata_server=P2PHANDSHAKE", "--device_name=uwarp0"];
    let target = [&common[..], &["--mode=target", "--local_server_name=10.9.0.1:12345"]].concat();
    let is_ready = |target: &Running| target.printed().contains("DRAM is used");
    let target = Host::wait_until(host.start(&target), &target, is_ready);
    let printed = target.printed();
    let place = printed.split_once("listening on ").and_then(|(_, rest)| rest.lines().next()).expect("its place");
    let place = format!("--segment_id={place}");
    for operation in ["--operation=read", "--operation=write"] {
        let limits = ["--duration=1", "--threads=2", "--batch_size=16", "--local_server_name=10.9.0.1:12346"];
        let said = host.start(&[&common[..], &limits, &[operation, &place]].concat()).wait_within(LIMIT);
        assert!(said.succeeded().contains("Test completed"), "{operation}: {}", said.output);
    }
}
