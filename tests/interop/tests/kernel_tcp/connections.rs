//! Short connections, half close, and ports without a listener.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::thread;
use std::time::Instant;

use uwarp::{TcpListener, TcpStream};
use uwarp_interop_tests::flows::{self, PATIENCE, join};

use crate::bed::{Bed, MIB, Opens, count};

impl Bed {
    /// Connections that carry one request and one answer; the requester closes them.
    pub fn short_connections(&mut self, opens: Opens) {
        let connections = count(1000, 10_000);
        let begin = Instant::now();
        let question = |number: u32| number.to_be_bytes();
        match opens {
            Opens::Kernel => {
                self.port += 1;
                let mut listener = TcpListener::bind(&self.context, self.port).expect("a free port");
                let to = self.context.socket_address(self.port);
                thread::scope(|scope| {
                    let client = scope.spawn(move || {
                        for number in 0..connections {
                            let mut stream = flows::kernel_connects(to)?;
                            stream.write_all(&question(number))?;
                            let mut answer = Vec::new();
                            stream.read_to_end(&mut answer)?;
                            assert_eq!(answer, question(!number));
                        }
                        Ok(())
                    });
                    for number in 0..connections {
                        let (mut stream, _) =
                            listener.accept_timeout(PATIENCE).expect("works").expect("another connection");
                        stream.set_read_timeout(Some(PATIENCE));
                        let mut asked = [0; 4];
                        stream.read_exact(&mut asked).expect("a question");
                        assert_eq!(asked, question(number));
                        stream.write_all(&question(!number)).expect("an answer");
                    }
                    join("the kernel connects", client).expect("every connection works");
                });
            }
            Opens::Stack => {
                let listener = flows::kernel_listens(self.kernel).expect("a listening socket");
                let to = listener.local_addr().unwrap();
                thread::scope(|scope| {
                    let server = scope.spawn(move || {
                        for number in 0..connections {
                            let (stream, _) = listener.accept()?;
                            let mut stream = flows::patient(stream)?;
                            let mut asked = [0; 4];
                            stream.read_exact(&mut asked)?;
                            assert_eq!(asked, question(number));
                            stream.write_all(&question(!number))?;
                        }
                        Ok(())
                    });
                    for number in 0..connections {
                        let mut stream = TcpStream::connect(&self.context, to).expect("the kernel answers");
                        stream.set_read_timeout(Some(PATIENCE));
                        stream.write_all(&question(number)).expect("a question");
                        let mut answer = Vec::new();
                        stream.read_to_end(&mut answer).expect("an answer and the end");
                        assert_eq!(answer, question(!number));
                    }
                    join("the kernel accepts", server).expect("every connection works");
                });
            }
        }
        let octets = u64::from(connections) * 8;
        let opener = format!("{opens:?}").to_lowercase();
        self.table.note(format!("{} {connections} connections by the {opener}", self.name), octets, begin);
    }

    /// The side that has sent its last octet continues to receive (RFC 9293 §3.6).
    pub fn half_close(&mut self) {
        for opens in [Opens::Kernel, Opens::Stack] {
            let (mut kernel, mut stack) = self.connect(opens);
            stack.set_read_timeout(Some(PATIENCE));
            stack.write_all(b"last words of the stack").unwrap();
            stack.shutdown_write();
            let mut heard = String::new();
            kernel.read_to_string(&mut heard).expect("up to the FIN");
            assert_eq!(heard, "last words of the stack");
            let sender = thread::spawn(move || flows::send(&mut kernel, 5, MIB));
            let after = flows::receive(&mut stack).expect("all of it");
            assert_eq!(after, sender.join().unwrap().expect("the stack still listens"));

            let (mut kernel, mut stack) = self.connect(opens);
            stack.set_read_timeout(Some(PATIENCE));
            kernel.write_all(b"last words of the kernel").unwrap();
            kernel.shutdown(Shutdown::Write).unwrap();
            let mut heard = String::new();
            stack.read_to_string(&mut heard).expect("up to the FIN");
            assert_eq!(heard, "last words of the kernel");
            let sender = thread::spawn(move || {
                let sent = flows::send(&mut stack, 6, MIB);
                stack.shutdown_write();
                (sent, stack)
            });
            let received = flows::receive(&mut kernel).expect("the stack still speaks");
            let (sent, _stack) = sender.join().unwrap();
            assert_eq!(received, sent.expect("room"));
        }
    }

    pub fn nobody_listens(&mut self) {
        let to = self.context.socket_address(9);
        assert_eq!(flows::kernel_connects(to).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let to = SocketAddr::new(self.kernel, 9);
        assert_eq!(TcpStream::connect(&self.context, to).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
}
