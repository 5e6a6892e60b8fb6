//! TCP ports and own addresses: which are free, which are chosen, and connections within one context.

mod common;

use common::*;
use std::collections::BTreeSet;
use std::net::IpAddr;
use uwarp::{
    AcceptOptions, Config, ConnectError, ConnectOptions, Context, Error, ListenOptions, ReceiveRequest, SendRequest,
    TcpListener, TcpStream,
};

fn second_address(config: Config, host: u8) -> Config {
    config.another_address(format!("10.0.0.{host}/24").parse().unwrap())
}

fn reason(error: Error) -> ConnectError {
    match error {
        Error::Connect { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

#[test]
fn port_0_is_a_free_port() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut listeners: Vec<_> = (0..10).map(|_| b.listen(0, ListenOptions::default()).unwrap()).collect();
        let stream = TcpListener::bind(&b, 0).unwrap();
        let mut ports: BTreeSet<u16> = listeners.iter().map(|listener| listener.port()).collect();
        ports.insert(stream.local_addr().port());
        assert!(ports.len() == 11 && ports.iter().all(|port| *port >= 49_152), "{ports:?}");
        let (mut client, mut server) = (Side::new(&a), Side::new(&b));
        connect_by(&mut listeners[3], &mut client, &mut server);
        assert_eq!(client.established.unwrap().peer.port(), listeners[3].port());
        TcpStream::start_connect(&a, stream.local_addr(), &uwarp::TcpStreamOptions::default()).unwrap();
    });
}

#[test]
fn a_reserved_port_is_its_holders() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let kept = b.reserve_port(Some(PORT)).unwrap();
        assert_eq!(kept.port(), PORT);
        for refused in [b.listen(PORT, ListenOptions::default()).map(drop), b.reserve_port(Some(PORT)).map(drop)] {
            assert!(matches!(refused, Err(Error::PortTaken(PORT))), "{refused:?}");
        }
        assert_eq!(TcpListener::bind(&b, PORT).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
        assert!(matches!(a.listen_on(&kept, ListenOptions::default()), Err(Error::Argument { .. })));
        let mut listener = b.listen_on(&kept, ListenOptions::default()).unwrap();
        assert!(matches!(b.listen_on(&kept, ListenOptions::default()), Err(Error::PortTaken(PORT))));
        let (mut client, mut server) = (Side::new(&a), Side::new(&b));
        connect_by(&mut listener, &mut client, &mut server);
        // The listener alone keeps it.
        drop(kept);
        assert!(matches!(b.reserve_port(Some(PORT)), Err(Error::PortTaken(PORT))));
        drop(listener);
        drop(b.listen(PORT, ListenOptions::default()).unwrap());
        drop(b.reserve_port(Some(PORT)).unwrap());
        // A listener that fails gives it back.
        assert!(b.listen(PORT, ListenOptions { backlog: 0, ..ListenOptions::default() }).is_err());
        drop(b.reserve_port(Some(PORT)).unwrap());
        assert!(matches!(b.reserve_port(Some(0)), Err(Error::Argument { .. })));
    });
}

#[test]
fn a_connection_may_come_from_a_reserved_port_and_takes_no_other_by_chance() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
        // All but one of the ports that the engine draws from.
        let mut kept: Vec<_> =
            (1024..=u16::MAX).filter(|port| *port != 5_000).map(|port| a.reserve_port(Some(port)).unwrap()).collect();
        assert!(matches!(a.listen(0, ListenOptions::default()), Err(Error::NoPort { .. })));
        let peer = b.socket_address(PORT);
        let mut clients = [Side::new(&a), Side::new(&a), Side::new(&a)];
        let first = a.start_connect(&mut clients[0].qp.control, peer, ConnectOptions::default()).unwrap();
        let request = listener.next(LONG).unwrap().unwrap();
        assert_eq!(request.peer().port(), 5_000);
        let second = a.connect(&mut clients[1].qp.control, peer, ConnectOptions::default()).unwrap_err();
        assert!(second.to_string().contains("no local TCP port is free"), "{second}");
        let own = kept.swap_remove(7);
        let options = ConnectOptions { local_port: Some(own.port()), ..ConnectOptions::default() };
        let third = a.start_connect(&mut clients[2].qp.control, peer, options).unwrap();
        let named = listener.next(LONG).unwrap().unwrap();
        assert_eq!(named.peer().port(), own.port());
        drop((request, named));
        for (connecting, client) in [first, third].into_iter().zip([0, 2]) {
            assert!(connecting.wait(&mut clients[client].qp.control).unwrap_err().rejection().is_some());
        }
    });
}

#[test]
fn a_listener_may_be_at_one_own_address() {
    in_both_modes(|mode| {
        let (a, b) = Context::pair_in_process(config(1, mode), second_address(config(2, mode), 3)).unwrap();
        let at: IpAddr = "10.0.0.3".parse().unwrap();
        let mut listener = b.listen(PORT, ListenOptions::default().address(at)).unwrap();
        let mut client = Side::new(&a);
        let other = a.start_connect(&mut client.qp.control, b.socket_address(PORT), ConnectOptions::default()).unwrap();
        assert_eq!(reason(other.wait(&mut client.qp.control).unwrap_err()), ConnectError::Refused);
        let connecting = a.start_connect(&mut client.qp.control, (at, PORT).into(), ConnectOptions::default()).unwrap();
        let request = listener.next(LONG).unwrap().unwrap();
        assert_eq!(request.local(), (at, PORT).into());
        drop(request);
        assert!(connecting.wait(&mut client.qp.control).unwrap_err().rejection().is_some());
        let nobodys: IpAddr = "10.0.0.9".parse().unwrap();
        let error = b.listen(1, ListenOptions::default().address(nobodys)).unwrap_err();
        assert!(error.to_string().contains("10.0.0.9 is none of this context's addresses"), "{error}");
        // And that port is free.
        b.listen(1, ListenOptions::default()).unwrap();
    });
}

#[test]
fn each_own_address_may_have_a_listener_of_its_own_on_one_port() {
    in_both_modes(|mode| {
        let (a, b) = Context::pair_in_process(config(1, mode), second_address(config(2, mode), 3)).unwrap();
        let own: [IpAddr; 2] = ["10.0.0.2", "10.0.0.3"].map(|address| address.parse().unwrap());
        let mut listeners = own.map(|own| b.listen(PORT, ListenOptions::default().address(own)).unwrap());
        let any = ListenOptions::default().address(std::net::Ipv4Addr::UNSPECIFIED);
        for refused in [ListenOptions::default(), any, ListenOptions::default().address(own[1])] {
            assert!(matches!(b.listen(PORT, refused), Err(Error::PortTaken(PORT))), "{refused:?}");
        }
        let mut client = Side::new(&a);
        for (own, listener) in own.iter().zip(&mut listeners) {
            let connecting =
                a.start_connect(&mut client.qp.control, (*own, PORT).into(), ConnectOptions::default()).unwrap();
            let request = listener.next(LONG).unwrap().unwrap();
            assert_eq!(request.local(), (*own, PORT).into());
            drop(request);
            assert!(connecting.wait(&mut client.qp.control).unwrap_err().rejection().is_some());
        }
        // Each is there for itself.
        let [first, mut second] = listeners;
        drop(first);
        let other = a.start_connect(&mut client.qp.control, (own[0], PORT).into(), ConnectOptions::default()).unwrap();
        assert_eq!(reason(other.wait(&mut client.qp.control).unwrap_err()), ConnectError::Refused);
        let connecting =
            a.start_connect(&mut client.qp.control, (own[1], PORT).into(), ConnectOptions::default()).unwrap();
        drop(second.next(LONG).unwrap().unwrap());
        assert!(connecting.wait(&mut client.qp.control).unwrap_err().rejection().is_some());
        drop(second);
        b.listen(PORT, any).unwrap();
    });
}

#[test]
fn a_connection_comes_from_the_own_address_that_is_named() {
    in_both_modes(|mode| {
        let (a, b) = Context::pair_in_process(second_address(config(1, mode), 11), config(2, mode)).unwrap();
        let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
        let mut client = Side::new(&a);
        for own in ["10.0.0.1", "10.0.0.11"] {
            let own: IpAddr = own.parse().unwrap();
            let options = ConnectOptions::default().local_address(own);
            let connecting = a.start_connect(&mut client.qp.control, b.socket_address(PORT), options).unwrap();
            let request = listener.next(LONG).unwrap().unwrap();
            assert_eq!(request.peer().ip(), own);
            drop(request);
            assert!(connecting.wait(&mut client.qp.control).is_err());
        }
        for nobodys in ["10.0.0.2", "10.0.0.99", "fe80::1", "0.0.0.0"] {
            let options = ConnectOptions::default().local_address(nobodys.parse::<IpAddr>().unwrap());
            let connecting = a.start_connect(&mut client.qp.control, b.socket_address(PORT), options).unwrap();
            let error = connecting.wait(&mut client.qp.control).unwrap_err();
            assert!(error.to_string().contains("none of this context's"), "{nobodys}: {error}");
        }
    });
}

/// Both ends of each connection are in one context, on whichever engine.
#[test]
fn queue_pairs_of_one_context_connect_to_each_other_on_every_engine() {
    for (engines, addresses) in [(1, 1), (3, 1), (3, 2)] {
        let config = Config::without_device("10.0.0.1/24").unwrap().without_monitor().threaded(engines);
        let context = Context::open(if addresses == 2 { second_address(config, 2) } else { config }).unwrap();
        let mut listener = context.listen(0, ListenOptions::default()).unwrap();
        let own: IpAddr = if addresses == 2 { "10.0.0.2" } else { "10.0.0.1" }.parse().unwrap();
        let (mut pairs, mut used) = (Vec::new(), BTreeSet::new());
        for _ in 0..2 * engines {
            let (mut client, mut server) = (Side::new(&context), Side::new(&context));
            let peer = (own, listener.port()).into();
            let connecting = context.start_connect(&mut client.qp.control, peer, ConnectOptions::default()).unwrap();
            let request = listener.next(LONG).unwrap().unwrap();
            used.insert(request.engine());
            server.qp.receive.post(&[ReceiveRequest::new(1, &[server.mr.sge(..100_000).unwrap()])]).unwrap();
            let accepting = request.start_accept(&mut server.qp.control, AcceptOptions::default()).unwrap();
            assert_eq!(connecting.wait(&mut client.qp.control).unwrap().peer, peer);
            accepting.wait(&mut server.qp.control).unwrap();
            pairs.push((client, server));
        }
        assert_eq!(used.len(), engines);
        for (seed, (client, server)) in pairs.iter_mut().enumerate() {
            let octets = pattern(seed as u64, 100_000);
            client.mr.write(0, &octets).unwrap();
            client.qp.send.post(&[SendRequest::send(2, &[client.mr.sge(..100_000).unwrap()]).signalled()]).unwrap();
            client.expect(2);
            server.expect(1);
            assert_eq!(server.octets(0, 100_000), octets);
            let at = client.mr.remote_offset() + 500_000;
            let write = SendRequest::write_inline(3, b"and back", client.mr.stag(), at).signalled();
            server.qp.send.post(&[write]).unwrap();
            server.expect(3);
            client.await_octet(500_007, b'k');
        }
        for (mut client, server) in pairs {
            drop(server);
            assert!(client.qp.control.wait_disconnected(LONG).unwrap());
        }
    }
}
