//! The loops over payload at the sizes that packets have, and looking an STag up.
//!
//! `cargo bench -p uwarp-memory`; throughput is that of octets in cache.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use uwarp_memory::{Access, Association, DomainId, RegionBuffer, RegionTable, Scope, StreamId, TaggedBase, kernels};

const SIZES: [usize; 8] = [16, 20, 64, 100, 256, 1460, 8960, 65536];

fn loops(criterion: &mut Criterion) {
    println!("kernels: {}", kernels::selected());
    let source: Vec<u8> = (0..65536 + 64).map(|index| index as u8).collect();
    let mut target = vec![0u8; 65536 + 4096];
    let mut group = criterion.benchmark_group("kernels");
    group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(400)).sample_size(20);
    for size in SIZES {
        // Payload behind an Ethernet, IPv4, TCP, MPA and DDP header is at no round address. The target is half a page
        // further on: at the same place in its page, each load would wait for the store before it.
        let source = &source[22..22 + size];
        let target = &mut target[2054..2054 + size];
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::new("crc32c", size), |bencher| {
            bencher.iter(|| kernels::crc32c(black_box(source)));
        });
        group.bench_function(BenchmarkId::new("copy", size), |bencher| {
            bencher.iter(|| kernels::copy(black_box(source), black_box(&mut *target)));
        });
        group.bench_function(BenchmarkId::new("copy-crc32c", size), |bencher| {
            bencher.iter(|| kernels::copy_crc32c(kernels::CRC32C_START, black_box(source), black_box(&mut *target)));
        });
        group.bench_function(BenchmarkId::new("checksum", size), |bencher| {
            bencher.iter(|| kernels::checksum_sum(black_box(source)));
        });
        group.bench_function(BenchmarkId::new("copy-std", size), |bencher| {
            bencher.iter(|| black_box(&mut *target).copy_from_slice(black_box(source)));
        });
    }
    group.finish();
}

fn turns(criterion: &mut Criterion) {
    let table = RegionTable::new(4096, u64::MAX, 1);
    let association = Association { domain: DomainId(1), stream: StreamId(2) };
    let scope = Scope::Domain(association.domain);
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let regions: Vec<_> = (0..64)
        .map(|_| {
            let buffer = RegionBuffer::from(vec![0; 1 << 14]);
            table.register(buffer, rights, scope, TaggedBase::Virtual).expect("room")
        })
        .collect();
    let mut epoch = table.engine();
    let mut group = criterion.benchmark_group("turn");
    group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(400)).sample_size(20);
    group.bench_function("enter and leave", |bencher| {
        bencher.iter(|| drop(black_box(epoch.enter())));
    });
    let turn = epoch.enter();
    let mut next = 0;
    group.bench_function("check", |bencher| {
        bencher.iter(|| {
            next = (next + 1) % regions.len();
            let (stag, offset) = (regions[next].stag(), regions[next].base_offset());
            turn.check(association, stag, offset + 64, 1024, Access::REMOTE_WRITE)
        });
    });
    let payload = [7u8; 1460];
    for size in [1, 64, 1460] {
        group.bench_function(BenchmarkId::new("place", size), |bencher| {
            bencher.iter(|| {
                let (stag, offset) = (regions[0].stag(), regions[0].base_offset());
                let payload = black_box(&payload[..size]);
                turn.place(association, stag, offset, payload, Access::REMOTE_WRITE)
            });
        });
    }
    let mut out = [0u8; 1460];
    for size in [64, 1460] {
        group.bench_function(BenchmarkId::new("gather_crc", size), |bencher| {
            bencher.iter(|| {
                let (stag, offset) = (regions[0].stag(), regions[0].base_offset());
                let out = black_box(&mut out[..size]);
                turn.gather_crc(association, stag, offset, out, !0, Access::LOCAL_READ)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, loops, turns);
criterion_main!(benches);
