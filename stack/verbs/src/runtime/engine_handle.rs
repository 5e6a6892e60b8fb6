//! An engine, seen from the threads of the application.

use crate::config::{InterfaceAddress, MacAddress};
use crate::runtime::driver::Health;
use crate::runtime::driver::at_helm::Helm;
use crate::runtime::lock::lock;
use crate::runtime::switch::Addresses;
use crossbeam::channel::{Receiver, Sender, unbounded};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use uwarp_engine::command::{Command, CompletionQueueId};
use uwarp_ring::{Doorbells, Notifier};

/// How long beyond the linger time an engine may take to stop before its thread is given up.
pub(crate) const STOP_MARGIN: Duration = Duration::from_secs(5);

/// One engine, seen from the threads of the application.
#[derive(Debug)]
pub(crate) struct EngineHandle {
    commands: Sender<Command>,
    doorbells: Arc<Doorbells>,
    /// Wakes the engine's thread.
    wake: Arc<Notifier>,
    /// The engine itself, if it has a thread.
    helm: Arc<Helm>,
    health: Arc<Health>,
    /// The mailbox's other end, until the engine runs.
    mailbox: Mutex<Option<Receiver<Command>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl EngineHandle {
    /// An engine that does not run yet.
    pub(crate) fn new(doorbells: Arc<Doorbells>, wake: Arc<Notifier>, health: Arc<Health>) -> Self {
        let (commands, mailbox) = unbounded();
        let helm = Arc::new(Helm::new(None, Arc::clone(&wake)));
        Self { commands, doorbells, wake, helm, health, mailbox: Mutex::new(Some(mailbox)), thread: Mutex::new(None) }
    }

    /// Ends the engine from any thread, when it is called: its queue pairs fail, and nobody waits for it. An engine
    /// with a `thread` of its own gets the time to say so.
    pub(crate) fn ender(&self, thread: bool) -> impl FnOnce(&str) + Send + 'static {
        let (commands, doorbells) = (self.commands.clone(), Arc::clone(&self.doorbells));
        let (wake, health) = (Arc::clone(&self.wake), Arc::clone(&self.health));
        move |cause| {
            let _ = commands.send(Command::Fail { cause: cause.to_owned() });
            doorbells.ring_mailbox();
            wake.fire_if_armed();
            if thread {
                let _ = health.ended().recv_timeout(STOP_MARGIN);
            }
            health.give_up(cause);
        }
    }

    /// Gives the engine other addresses, and the station that all their owners are behind, from any thread.
    pub(crate) fn mover(&self) -> impl Fn(&Addresses, MacAddress) + Send + 'static {
        let (commands, doorbells, wake) = (self.commands.clone(), Arc::clone(&self.doorbells), Arc::clone(&self.wake));
        move |addresses, station| {
            let plain = |own: &InterfaceAddress| uwarp_engine::InterfaceAddress {
                address: own.address,
                prefix_length: own.prefix,
            };
            let (own, others) = (addresses.own.iter().map(plain).collect(), addresses.others());
            if commands.send(Command::SetAddresses { addresses: own, others, station: station.0 }).is_ok() {
                doorbells.ring_mailbox();
                wake.fire_if_armed();
            }
        }
    }

    /// Puts a command into the mailbox. An engine that does not run yet finds it there when it does; one that is gone
    /// drops it, and with it the reply channels inside.
    pub(crate) fn command(&self, command: Command) {
        if let Command::RemoveCompletionQueue { queue } = &command
            && self.forget(*queue)
        {
            return;
        }
        if self.commands.send(command).is_ok() {
            self.doorbells.ring_mailbox();
            self.wake.fire_if_armed();
        }
    }

    /// Takes a completion queue out of the mailbox of an engine that does not run yet, so that a program which makes
    /// many before the start does not fill it. False if the engine runs.
    fn forget(&self, queue: CompletionQueueId) -> bool {
        let mailbox = lock(&self.mailbox);
        let Some(mailbox) = &*mailbox else { return false };
        for command in mailbox.try_iter().collect::<Vec<_>>() {
            if !matches!(&command, Command::AddCompletionQueue { queue: added, .. } if *added == queue) {
                let _ = self.commands.send(command);
            }
        }
        true
    }

    /// The mailbox for an engine that is about to run; none if it runs, or never will.
    pub(crate) fn mailbox(&self) -> Option<Receiver<Command>> {
        lock(&self.mailbox).clone()
    }

    /// The engine runs from now on, on this thread or the caller's.
    pub(crate) fn runs(&self, thread: Option<JoinHandle<()>>) {
        lock(&self.mailbox).take();
        *lock(&self.thread) = thread;
    }

    pub(crate) fn doorbells(&self) -> &Arc<Doorbells> {
        &self.doorbells
    }

    pub(crate) fn wake(&self) -> &Arc<Notifier> {
        &self.wake
    }

    pub(crate) fn helm(&self) -> &Arc<Helm> {
        &self.helm
    }

    /// The engine's thread, for whoever waits for its end.
    pub(crate) fn take_thread(&self) -> Option<JoinHandle<()>> {
        lock(&self.thread).take()
    }

    pub(crate) fn health(&self) -> &Arc<Health> {
        &self.health
    }
}
