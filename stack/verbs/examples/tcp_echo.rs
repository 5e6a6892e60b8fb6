//! A plain TCP stream: the server sends back what it reads. Any TCP peer can be the other end.
//!
//! ```text
//! cargo run -p uwarp --example tcp_echo
//! cargo run -p uwarp --example tcp_echo -- --device config/virtio-user.toml server
//! cargo run -p uwarp --example tcp_echo -- --device config/vhost.toml client 10.99.0.1
//! ```

mod common;

use std::io::{Read, Write};
use std::net::SocketAddr;

use common::{Outcome, PORT};
use uwarp::{Context, TcpListener, TcpStream};

fn listen(context: &Context) -> Outcome<TcpListener> {
    Ok(TcpListener::bind(context, PORT)?)
}

fn server(_context: &Context, mut listener: TcpListener) -> Outcome {
    let (mut stream, peer) = listener.accept()?;
    let mut octets = [0; 4096];
    loop {
        match stream.read(&mut octets)? {
            0 => break,
            count => stream.write_all(&octets[..count])?,
        }
    }
    println!("{peer} has closed");
    Ok(())
}

fn client(context: &Context, server: SocketAddr) -> Outcome {
    let mut stream = TcpStream::connect(context, server)?;
    stream.write_all(b"good morning")?;
    let mut text = [0; 12];
    stream.read_exact(&mut text)?;
    println!("the echo: {}", String::from_utf8_lossy(&text));
    Ok(())
}

fn main() -> Outcome {
    common::run(listen, server, client)
}
