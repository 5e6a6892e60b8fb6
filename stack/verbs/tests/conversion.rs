//! A plain stream becomes an RDMA stream, or goes on after a rejection.

mod common;

use common::{LONG, PORT, in_both_modes, pair};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::time::Duration;
use uwarp::{
    AcceptOptions, Access, ConnectOptions, Context, ConversionError, Error, QueuePairOptions, ReceiveRequest,
    SendRequest, TcpListener, TcpStream,
};

use common::Mode;

/// Reads a line of text and not one octet more.
fn line(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while text.last() != Some(&b'\n') {
        let mut octet = [0];
        stream.read_exact(&mut octet).unwrap();
        text.push(octet[0]);
    }
    String::from_utf8(text).unwrap()
}

/// Agrees on RDMA in words, converts as responder, and echoes one message; or rejects `rejections` times before.
fn serve(context: &Context, mut stream: TcpStream, rejections: usize) {
    assert_eq!(line(&mut stream), "can you speak RDMA?\n");
    for attempt in 0..rejections {
        stream.write_all(b"try me\n").unwrap();
        let request = stream.into_responder(LONG).unwrap();
        assert_eq!(request.private_data(), b"please");
        stream = request.reject_to_stream(b"not today").unwrap();
        stream.write_all(format!("rejected {attempt}\n").as_bytes()).unwrap();
        assert_eq!(line(&mut stream), "once more?\n");
    }
    // The peer has its answer, and begins at once: its Request may lie behind the text.
    stream.write_all(b"yes\n").unwrap();
    let request = stream.into_responder(LONG).unwrap();
    assert_eq!(request.private_data(), b"please");
    let mut completions = context.create_completion_queue(16).unwrap();
    let domain = context.allocate_domain();
    let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions)).unwrap();
    let memory = domain.register(vec![0; 100_000], Access::LOCAL_WRITE | Access::LOCAL_READ).unwrap();
    queue_pair.receive.post(&[ReceiveRequest::new(1, &[memory.sge(..).unwrap()])]).unwrap();
    request.accept(&mut queue_pair.control, AcceptOptions::default().private_data(&b"welcome"[..])).unwrap();
    let received = completions.next(LONG).unwrap().unwrap();
    assert!(received.status.is_success());
    let back = memory.sge(..received.length as usize).unwrap();
    queue_pair.send.post(&[SendRequest::send(2, &[back]).signalled()]).unwrap();
    assert!(completions.next(LONG).unwrap().unwrap().status.is_success());
    assert!(queue_pair.control.wait_disconnected(LONG).unwrap());
}

fn speak(context: &Context, mut stream: TcpStream, rejections: usize) {
    let mut completions = context.create_completion_queue(16).unwrap();
    let domain = context.allocate_domain();
    let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions)).unwrap();
    let octets: Vec<u8> = (0..100_000_u32).map(|at| (at % 253) as u8).collect();
    let memory = domain.register(octets.clone(), Access::LOCAL_READ).unwrap();
    let sink = domain.register(vec![0; 100_000], Access::LOCAL_WRITE).unwrap();
    queue_pair.receive.post(&[ReceiveRequest::new(1, &[sink.sge(..).unwrap()])]).unwrap();
    stream.write_all(b"can you speak RDMA?\n").unwrap();
    let options = ConnectOptions::default().private_data(&b"please"[..]);
    for attempt in 0..rejections {
        assert_eq!(line(&mut stream), "try me\n");
        let ConversionError { error, stream: plain } =
            stream.into_initiator(&mut queue_pair.control, options.clone()).unwrap_err();
        assert_eq!(error.rejection(), Some(&b"not today"[..]));
        stream = *plain.expect("the stream goes on");
        assert_eq!(line(&mut stream), format!("rejected {attempt}\n"));
        stream.write_all(b"once more?\n").unwrap();
    }
    assert_eq!(line(&mut stream), "yes\n");
    let established = stream.into_initiator(&mut queue_pair.control, options).unwrap();
    assert_eq!(established.private_data, b"welcome");
    queue_pair.send.post(&[SendRequest::send(2, &[memory.sge(..).unwrap()])]).unwrap();
    let echoed = completions.next(LONG).unwrap().unwrap();
    assert!(echoed.status.is_success() && echoed.length == 100_000, "{echoed:?}");
    assert!(sink.to_vec(0, 100_000).unwrap() == octets);
    queue_pair.control.disconnect();
    assert!(queue_pair.control.wait_disconnected(LONG).unwrap());
}

fn agreed(rejections: usize) {
    let (a, b) = pair(Mode::Threaded);
    let mut listener = TcpListener::bind(&b, PORT).unwrap();
    let address = listener.local_addr();
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        serve(&b, stream, rejections);
    });
    speak(&a, TcpStream::connect(&a, address).unwrap(), rejections);
    server.join().unwrap();
}

#[test]
fn a_text_handshake_and_then_rdma_on_the_same_connection() {
    agreed(0);
}

#[test]
fn a_rejected_start_up_hands_the_stream_back_and_may_be_tried_again() {
    agreed(2);
}

#[test]
fn what_is_not_mpa_ends_the_connection() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut listener = TcpListener::bind(&b, PORT).unwrap();
        let mut client = TcpStream::connect(&a, listener.local_addr()).unwrap();
        let (server, _) = listener.accept_timeout(LONG).unwrap().unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: 10.0.0.2\r\n\r\n").unwrap();
        let failed = server.into_responder(LONG).unwrap_err();
        assert!(matches!(failed.error, Error::Accept { .. }) && failed.stream.is_none(), "{failed:?}");
        client.set_read_timeout(Some(LONG));
        assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_stream_that_is_half_closed_is_not_converted_and_comes_back() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut listener = TcpListener::bind(&b, PORT).unwrap();
        let mut client = TcpStream::connect(&a, listener.local_addr()).unwrap();
        let (mut server, _) = listener.accept_timeout(LONG).unwrap().unwrap();
        client.shutdown_write();
        server.set_read_timeout(Some(LONG));
        assert_eq!(server.read(&mut [0; 1]).unwrap(), 0);
        // This side may still write, but nobody would answer.
        let failed = server.into_responder(Duration::from_secs(5)).unwrap_err();
        let mut server = *failed.stream.expect("nothing was begun");
        server.write_all(b"bye\n").unwrap();
        drop(server);
        client.set_read_timeout(Some(LONG));
        let mut text = String::new();
        BufReader::new(client).read_line(&mut text).unwrap();
        assert_eq!(text, "bye\n");
    });
}
