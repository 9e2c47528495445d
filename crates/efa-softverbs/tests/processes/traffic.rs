//! Messages and RDMA between processes, some of which are killed.

use efa_soft::abi::*;

use crate::common::verbs::*;
use crate::{Host, LINKS, begin, print, read, rkey};

/// Receives a message, and prints how its sender is identified; again with an address handle for it.
#[test]
#[ignore = "a child"]
fn child_receives_from_unknown_sender() {
    begin();
    let end = Endpoint::new(QpOptions::default());
    let buffer = Memory::of(&[0; 64]);
    let region = end.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(end.post_receive(1, sge(region, 0, 64)), 0);
    print(end.number());
    let seen = end.wait();
    print(format!("{} {:#x} {:?}", seen.source, seen.handle, seen.gid == Some(end.gid())));
    let handle = end.handle(seen.gid.unwrap());
    assert_eq!(end.post_receive(2, sge(region, 0, 64)), 0);
    print("ready");
    let seen = end.wait();
    print(format!("{} {:?}", seen.handle != 0xffff, seen.gid));
    // SAFETY: both objects were created here and are not used afterwards.
    unsafe {
        assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
        assert_eq!((verbs().ibv_dereg_mr)(region), 0);
    }
}

/// Sends to each queue pair whose number it reads; prints the vendor error of the completion.
#[test]
#[ignore = "a child"]
fn child_sends_to_given_queue_pairs() {
    begin();
    let end = Endpoint::new(QpOptions::default());
    let handle = end.handle(end.gid());
    print(end.number());
    while let Ok(number) = read().parse::<u32>() {
        let to = (handle, number, end.qkey);
        assert_eq!(end.post_send(1, to, &[inline(b"hi")], IBV_SEND_INLINE), 0);
        print(end.wait().vendor);
    }
    // SAFETY: the object was created here and is not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_destroy_ah)(handle) }, 0);
}

#[test]
fn sender_without_address_handle_is_identified_by_gid() {
    for link in LINKS {
        let host = Host::new(link);
        let mut receiver = host.start("traffic::child_receives_from_unknown_sender");
        let mut sender = host.start("traffic::child_sends_to_given_queue_pairs");
        let (to, from) = (receiver.receive(), sender.receive());
        sender.send(&to);
        assert_eq!(receiver.receive(), format!("{from} 0xffff true"));
        assert_eq!(sender.receive(), "0");
        assert_eq!(receiver.receive(), "ready");
        sender.send(&to);
        assert_eq!(receiver.receive(), "true None");
    }
}

/// Registers memory and prints queue pair number, address and key. Makes an address handle for the host when asked,
/// then prints the content when asked.
#[test]
#[ignore = "a child"]
fn child_exposes_memory() {
    begin();
    let end = Endpoint::new(QpOptions::default());
    let memory = Memory::of(b"a secret of another process");
    let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    let region = end.register(&memory, access);
    print(end.number());
    print(memory.address() as u64);
    print(rkey(region));
    read();
    let handle = end.handle(end.gid());
    print("known");
    read();
    print(String::from_utf8_lossy(&memory.bytes()));
    read();
    // SAFETY: the object was created here and is not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_destroy_ah)(handle) }, 0);
}

/// Reads number, address and key of remote memory, then `read` or `write`; prints the vendor error and the
/// local memory.
#[test]
#[ignore = "a child"]
fn child_reads_and_writes_remote_memory() {
    begin();
    let end = Endpoint::new(QpOptions::default());
    let memory = Memory::of(&[b'x'; 8]);
    let region = end.register(&memory, IBV_ACCESS_LOCAL_WRITE);
    let handle = end.handle(end.gid());
    let number = || read().parse::<u64>().unwrap();
    let to = (handle, number() as u32, end.qkey);
    let remote = (number(), number() as u32);
    loop {
        let write = match read().as_str() {
            "write" => true,
            "read" => false,
            _ => return,
        };
        assert_eq!(end.post_remote(1, to, write, remote, &[sge(region, 0, 8)]), 0);
        let seen = end.wait();
        print(format!("{} {}", seen.vendor, String::from_utf8_lossy(&memory.bytes())));
    }
}

#[test]
fn rdma_reaches_memory_of_process_from_its_address_handle_until_it_is_killed() {
    for link in LINKS {
        let host = Host::new(link);
        let mut owner = host.start("traffic::child_exposes_memory");
        let mut user = host.start("traffic::child_reads_and_writes_remote_memory");
        for _ in 0..3 {
            let number = owner.receive();
            user.send(number);
        }
        for operation in ["read", "write"] {
            user.send(operation);
            assert_eq!(user.receive(), "14 xxxxxxxx", "{link}: no address handle at the owner");
        }
        owner.send("make a handle");
        assert_eq!(owner.receive(), "known");
        user.send("write");
        assert_eq!(user.receive(), "0 xxxxxxxx");
        owner.send("go on");
        assert_eq!(owner.receive(), "xxxxxxxx of another process");
        user.send("read");
        assert_eq!(user.receive(), "0 xxxxxxxx");
        owner.kill();
        for operation in ["read", "write"] {
            user.send(operation);
            // UNRESPONSIVE_REMOTE, or BAD_DEST_QPN where the link sees that the process is gone.
            let answer = user.receive();
            assert!(["13 xxxxxxxx", "9 xxxxxxxx"].contains(&answer.as_str()), "{link}: {answer}");
        }
    }
}

/// Files of killed processes are removed by the next process, of which alone there are files then.
fn check_cleaned_up(host: &Host) {
    host.run("settings::child_queries_devices", &[]);
    assert_eq!(std::fs::read_dir(host.sysfs()).unwrap().count(), 1, "one sysfs tree");
    if host.link == "shm" {
        let directory = host.directory.path().join("hosts/efa");
        let names: Vec<_> =
            std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let count =
            |prefix| names.iter().filter(|name| name.to_string_lossy().starts_with(prefix)).count();
        assert_eq!((count("qp-"), count("mem-")), (1, 2), "{names:?}");
    }
}

#[test]
fn killed_process_leaves_peer_working_and_no_files() {
    for link in LINKS {
        let host = Host::new(link);
        let mut sender = host.start("traffic::child_sends_to_given_queue_pairs");
        sender.receive();
        for _ in 0..3 {
            let mut killed = host.start("traffic::child_receives_from_unknown_sender");
            let number = killed.receive();
            sender.send(&number);
            assert_eq!(sender.receive(), "0");
            killed.kill();
            sender.send(&number);
            let answer = sender.receive();
            assert!(["9", "13"].contains(&answer.as_str()), "{link}: {answer}");
        }
        check_cleaned_up(&host);
    }
}

/// An endpoint that receives, and keeps sends to a peer and reads of its memory outstanding.
struct Exchange {
    end: Endpoint,
    handle: *mut ibv_ah,
    region: *mut ibv_mr,
    memory: Memory,
    /// Number of sends and reads that were posted and have not completed.
    outstanding: usize,
}

impl Exchange {
    const BUFFERS: usize = 32;
    const OUTSTANDING: usize = 16;
    const READ: usize = 100_000;

    fn new() -> Self {
        let end = Endpoint::new(QpOptions::default());
        let memory = Memory::of(&vec![1; 64 * Self::BUFFERS + Self::READ]);
        let region = end.register(&memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
        let exchange = Self { handle: end.handle(end.gid()), end, region, memory, outstanding: 0 };
        (0..Self::BUFFERS as u64).for_each(|buffer| exchange.post(buffer));
        exchange
    }

    fn post(&self, buffer: u64) {
        let part = sge(self.region, 64 * buffer as usize, 64);
        assert_eq!(self.end.post_receive(buffer, part), 0);
    }

    /// Queue pair number, address and key, as text.
    fn describe(&self) -> String {
        let (number, address) = (self.end.number(), self.memory.address() as u64);
        format!("{number} {address} {}", rkey(self.region))
    }

    fn start(&mut self, (number, address, key): (u32, u64, u32)) {
        let to = (self.handle, number, self.end.qkey);
        while self.outstanding < Self::OUTSTANDING {
            let result = match self.outstanding % 2 {
                0 => self.end.post_send(0, to, &[inline(b"a message of traffic")], IBV_SEND_INLINE),
                _ => {
                    let into = sge(self.region, 64 * Self::BUFFERS, Self::READ);
                    let from = (address + 64 * Self::BUFFERS as u64, key);
                    self.end.post_remote(0, to, false, from, &[into])
                }
            };
            assert_eq!(result, 0);
            self.outstanding += 1;
        }
    }

    /// Polls once; returns the vendor error of a send or read that completed.
    fn take(&mut self) -> Option<u32> {
        let seen = self.end.poll()?;
        if seen.opcode == IBV_WC_RECV {
            assert_eq!(seen.status, IBV_WC_SUCCESS);
            self.post(seen.wr_id);
            return None;
        }
        self.outstanding -= 1;
        Some(seen.vendor)
    }

    fn destroy(self) {
        // SAFETY: both objects were created here and are not used afterwards; all peers are killed.
        unsafe {
            assert_eq!((verbs().ibv_destroy_ah)(self.handle), 0);
            assert_eq!((verbs().ibv_dereg_mr)(self.region), 0);
        }
    }
}

fn parse_peer(text: &str) -> (u32, u64, u32) {
    let mut words = text.split(' ');
    let mut next = || words.next().unwrap();
    (next().parse().unwrap(), next().parse().unwrap(), next().parse().unwrap())
}

/// Exchanges messages and reads with a peer until it is killed.
#[test]
#[ignore = "a child"]
fn child_exchanges_until_killed() {
    begin();
    let mut exchange = Exchange::new();
    print(exchange.describe());
    let peer = parse_peer(&read());
    for ended in 0_u64.. {
        exchange.start(peer);
        while exchange.outstanding == Exchange::OUTSTANDING {
            assert!(exchange.take().is_none_or(|vendor| vendor == 0));
        }
        if ended == 200 {
            print("exchanging");
        }
    }
}

/// Exchanges messages and reads with one peer after the other, each of which is killed. Everything that
/// was posted completes.
#[test]
#[ignore = "a child"]
fn child_exchanges_with_peers_that_are_killed() {
    begin();
    let mut exchange = Exchange::new();
    print(exchange.describe());
    loop {
        let line = read();
        if line.is_empty() {
            break;
        }
        let (peer, mut exists) = (parse_peer(&line), true);
        while exists || exchange.outstanding > 0 {
            if exists {
                exchange.start(peer);
            }
            match exchange.take() {
                None | Some(0) => {}
                Some(9 | 13) => exists = false,
                Some(other) => panic!("{other}"),
            }
        }
        print("peer is gone");
    }
    exchange.destroy();
    print("ended");
}

#[test]
fn process_killed_during_traffic_leaves_peer_working() {
    for link in LINKS {
        let host = Host::new(link);
        let mut survivor = host.start("traffic::child_exchanges_with_peers_that_are_killed");
        let description = survivor.receive();
        for _ in 0..5 {
            let mut killed = host.start("traffic::child_exchanges_until_killed");
            survivor.send(killed.receive());
            killed.send(&description);
            assert_eq!(killed.receive(), "exchanging");
            killed.kill();
            assert_eq!(survivor.receive(), "peer is gone", "{link}");
        }
        check_cleaned_up(&host);
        survivor.send("");
        assert_eq!(survivor.receive(), "ended");
        assert!(survivor.child.wait().unwrap().success());
    }
}

/// Sends a message from each of many queue pairs to one.
#[test]
#[ignore = "a child"]
fn child_sends_from_many_queue_pairs_to_one() {
    const SENDERS: u64 = 300;
    begin();
    let target = Endpoint::new(QpOptions { receives: 512, ..QpOptions::default() });
    let buffer = Memory::of(&[0; 8]);
    let region = target.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let source = Endpoint::new(QpOptions::default());
    let handle = source.handle(target.gid());
    let options = QpOptions { sends: 1, receives: 1, ..QpOptions::default() };
    let senders: Vec<_> = (0..SENDERS).map(|_| source.second_queue_pair(options)).collect();
    for (number, sender) in (0..).zip(&senders) {
        sender.make_ready(options);
        assert_eq!(target.post_receive(number, sge(region, 0, 8)), 0);
        let to = (handle, target.number(), target.qkey);
        assert_eq!(sender.post_send(number, to, &[inline(b"a sender")], IBV_SEND_INLINE), 0);
    }
    for _ in 0..SENDERS {
        assert_eq!((target.wait().status, source.wait().vendor), (IBV_WC_SUCCESS, 0));
    }
    // SAFETY: the objects were created here and are not used afterwards.
    unsafe {
        for sender in senders {
            assert_eq!((verbs().ibv_destroy_qp)(sender.qp), 0);
        }
        assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
        assert_eq!((verbs().ibv_dereg_mr)(region), 0);
    }
}

/// More than the 256 that the shm link has room for by default, and the tcp link has connections of.
#[test]
fn queue_pair_gets_a_message_of_each_of_three_hundred_senders() {
    // So that the rings of all take little memory.
    let settings = [("EFA_SOFT_MTU", "1024")];
    Host::new("shm").run("traffic::child_sends_from_many_queue_pairs_to_one", &settings);
}
