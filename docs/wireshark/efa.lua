-- Captures of the software EFA device in Wireshark and tshark: packets of the EFA RDM protocol v4, behind the
-- pseudo header that docs/capture.md describes.
--
--   tshark -X lua_script:docs/wireshark/efa.lua -r run.pcapng -Y 'efa.msg_id == 7'
--
-- The layouts are those of crates/efa-proto. The text of the Info column and of the expert info on malformed
-- packets is that of efa-proto. crates/efa-cli/tests/wireshark.rs compares both and the fields with efa-proto.

local efa = Proto("efa", "EFA RDM protocol v4")

local PSEUDO_HEADER = 40
local VERSION = 4
local MAX_IOV = 4
-- Most user queue pairs remembered, as in `efa decode`.
local MAX_USER_QUEUES = 4096

local EVENTS = { [0] = "sent", [1] = "received", [2] = "failed" }
local EVENTS_IN_INFO = { [0] = "sent", [1] = "recv", [2] = "fail" }

local STATUSES = {
    [0] = "none",
    [1] = "flushed",
    [2] = "internal error of the queue pair",
    [3] = "operation not supported",
    [4] = "no such address handle",
    [5] = "local memory key not valid",
    [6] = "local length out of range",
    [7] = "remote address, key or access not valid",
    [8] = "the remote side was reset",
    [9] = "no such queue pair at the remote side",
    [10] = "receiver not ready",
    [11] = "the datagram did not fit the receiver's buffer",
    [12] = "unexpected response of the remote side",
    [13] = "the remote side stopped responding",
    [14] = "the remote side does not know the sender",
    [15] = "the remote side was never reachable (is it running, and on the same link and network?)",
    [18] = "the remote side lacks a feature that the operation needs",
}

local DATATYPES = {
    [0] = "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "FLOAT", "DOUBLE",
    "FLOAT_COMPLEX", "DOUBLE_COMPLEX", "LONG_DOUBLE", "LONG_DOUBLE_COMPLEX",
}

local OPERATIONS = {
    [0] = "MIN", "MAX", "SUM", "PROD", "LOR", "LAND", "BOR", "BAND", "LXOR", "BXOR", "ATOMIC_READ", "ATOMIC_WRITE",
    "CSWAP", "CSWAP_NE", "CSWAP_LE", "CSWAP_LT", "CSWAP_GE", "CSWAP_GT", "MSWAP",
}

local REF_KINDS = { [0] = "operation", [1] = "msg_id", [2] = "msg_id to be skipped" }
local EMITTERS = { [1] = "sender", [2] = "receiver" }

-- Bits of HANDSHAKE's extra info: number, name, whether it announces a feature or makes a request.
local EXTRAS = {
    { 0, "RDMA read", "feature" },
    { 1, "delivery complete", "feature" },
    { 2, "constant header length", "request" },
    { 3, "connid header", "request" },
    { 4, "runting read", "feature" },
    { 5, "RDMA write", "feature" },
    { 6, "read nack", "feature" },
    { 7, "user receive QP", "request" },
    { 8, "unsolicited write receive", "feature" },
    { 9, "peer error", "feature" },
    { 63, "peer error of 20 bytes", "feature" },
}

-- Packet types --------------------------------------------------------------------------------------------------------

-- Name and family of each type; the fields of its fixed header in wire order, with their sizes if they are others than
-- in SIZES; the fields of its text, if not those of the header in their order.
local TYPES = {
    [3] = { "CTS", "cts", "connid? send_id recv_id recv_length", "send_id recv_id recv_length emulated_read connid" },
    [4] = { "CTSDATA", "ctsdata", "recv_id seg_length seg_offset", "recv_id seg_offset seg_length connid" },
    [5] = { "READRSP", "plain", "connid? recv_id send_id seg_length", "recv_id send_id seg_length connid" },
    [7] = { "EOR", "eor", "send_id recv_id connid?", "send_id recv_id form connid" },
    [8] = { "ATOMRSP", "plain", "connid? reserved recv_id seg_length", "recv_id seg_length connid" },
    [9] = {
        "HANDSHAKE", "handshake", "nextra_p3",
        "extra_info connid host_id device_version user_recv_qp hmem_p2p",
    },
    [10] = { "RECEIPT", "plain", "send_id msg_id connid?" },
    [11] = { "READ_NACK", "plain", "send_id recv_id connid?" },
    [12] = { "PEER_ERROR", "peer_error", "op_id ref_kind pad:3 prov_errno connid?" },

    [70] = { "EAGER_RTW", "rtw", "rma_iov_count" },
    [71] = { "LONGCTS_RTW", "rtw", "rma_iov_count msg_length send_id credit_request" },
    [72] = { "SHORT_RTR", "rtr", "rma_iov_count msg_length recv_id recv_length:4" },
    [73] = { "LONGCTS_RTR", "rtr", "rma_iov_count msg_length recv_id recv_length:4" },
    [74] = { "WRITE_RTA", "rta", "msg_id rma_iov_count datatype op id" },
    [75] = { "FETCH_RTA", "rta", "msg_id rma_iov_count datatype op id=recv_id" },
    [76] = { "COMPARE_RTA", "rta", "msg_id rma_iov_count datatype op id=recv_id" },
    [130] = { "LONGREAD_RTW", "rtw", "rma_iov_count msg_length send_id read_iov_count" },
    [139] = { "DC_EAGER_RTW", "rtw", "rma_iov_count send_id pad" },
    [140] = { "DC_LONGCTS_RTW", "rtw", "rma_iov_count msg_length send_id credit_request" },
    [141] = { "DC_WRITE_RTA", "rta", "msg_id rma_iov_count datatype op id=send_id" },

    [142] = { "RUNTCTS_MSGRTM", "never_sent", "header:36", "header" },
    [143] = { "RUNTCTS_TAGRTM", "never_sent", "header:44", "header" },
    [144] = { "RUNTCTS_RTW", "never_sent", "header:36", "header" },
    [147] = { "RUNTREAD_RTW", "never_sent", "header:36", "header" },
}

-- Message requests: the first of two types, the second of which is tagged.
for number, message in pairs({
    [64] = { "EAGER", "" },
    [66] = { "MEDIUM", " msg_length seg_offset" },
    [68] = { "LONGCTS", " msg_length send_id credit_request", "read_nack" },
    [128] = { "LONGREAD", " msg_length send_id read_iov_count" },
    [133] = { "DC_EAGER", " send_id pad" },
    [135] = { "DC_MEDIUM", " send_id pad msg_length seg_offset" },
    [137] = { "DC_LONGCTS", " msg_length send_id credit_request", "read_nack" },
    [145] = { "RUNTREAD", " msg_length send_id read_iov_count seg_offset runt_length" },
}) do
    local name, fields, flag = message[1], message[2], message[3] or ""
    TYPES[number] = { name .. "_MSGRTM", "rtm", "msg_id" .. fields, "msg_id" .. fields .. " " .. flag }
    TYPES[number + 1] =
        { name .. "_TAGRTM", "rtm", "msg_id" .. fields .. " tag", "msg_id tag" .. fields .. " " .. flag }
end

-- The forms of PEER_ERROR that name the message, by their lengths.
local PEER_ERROR_MARKED = { "PEER_ERROR", "peer_error", "msg_id op_id emitter prov_errno connid?",
    "msg_id op_id emitter prov_errno form connid" }
local PEER_ERROR_FLAGGED = { "PEER_ERROR", "peer_error", "msg_id op_id op_id_valid emitter prov_errno connid?",
    "msg_id op_id emitter prov_errno form connid" }
local NO_OPERATION = 0xffffffff

-- EOR up to release 1.13 of libfabric.
local EOR_SHORT = { "EOR", "eor", "send_id recv_id", "send_id recv_id form" }

local TYPE_NAMES = {}
for number, layout in pairs(TYPES) do TYPE_NAMES[number] = layout[1] end

local REQUESTS = { rtm = true, rtw = true, rtr = true, rta = true }

-- Fields --------------------------------------------------------------------------------------------------------------

-- Bytes of the fields of fixed headers that aren't 4 long.
local SIZES = {
    msg_length = 8, seg_offset = 8, seg_length = 8, runt_length = 8, recv_length = 8, tag = 8, ref_kind = 1,
}

-- What is shown as 0x…
local HEXADECIMAL = {
    tag = true, send_id = true, recv_id = true, op_id = true, cq_data = true, host_id = true, device_version = true,
}

local F = {}

local function numeric(kind, abbreviation, name, shown, names)
    F[abbreviation] = ProtoField[kind]("efa." .. abbreviation, name, shown, names)
end

local function plain(kind, abbreviation, name)
    F[abbreviation] = ProtoField[kind]("efa." .. abbreviation, name)
end

plain("none", "capture", "Capture")
numeric("uint8", "capture_version", "Version of the pseudo header", base.DEC)
numeric("uint8", "event", "Event", base.DEC, EVENTS)
numeric("uint8", "status", "Status", base.DEC, STATUSES)
numeric("uint16", "src_qpn", "Queue pair of the source", base.DEC)
numeric("uint16", "dst_qpn", "Queue pair of the destination", base.DEC)
numeric("uint16", "qpn", "Queue pair of the source or destination", base.DEC)
plain("ipv6", "src_gid", "GID of the source")
plain("ipv6", "dst_gid", "GID of the destination")
plain("ipv6", "gid", "GID of the source or destination")

plain("none", "header", "Header")
numeric("uint8", "type", "Type", base.DEC, TYPE_NAMES)
numeric("uint8", "version", "Version", base.DEC)
numeric("uint16", "flags", "Flags", base.HEX)

numeric("uint32", "msg_id", "Message (msg_id)", base.DEC)
numeric("uint64", "tag", "Tag", base.HEX)
numeric("uint64", "msg_length", "Length of the message (msg_length)", base.DEC)
numeric("uint64", "seg_offset", "Offset of the segment (seg_offset)", base.DEC)
numeric("uint64", "seg_length", "Length of the segment (seg_length)", base.DEC)
numeric("uint64", "runt_length", "Length of the leading part (runt_length)", base.DEC)
numeric("uint32", "send_id", "Operation of the sender (send_id)", base.HEX)
numeric("uint32", "recv_id", "Operation of the receiver (recv_id)", base.HEX)
numeric("uint32", "op_id", "Operation (op_id)", base.HEX)
numeric("uint32", "credit_request", "Packets asked to be granted (credit_request)", base.DEC)
numeric("uint64", "recv_length", "Bytes granted (recv_length)", base.DEC)
numeric("uint32", "datatype", "Data type", base.DEC, DATATYPES)
numeric("uint32", "op", "Operation on the memory (op)", base.DEC, OPERATIONS)
numeric("uint32", "connid", "Incarnation of the sender (connid)", base.HEX)
numeric("uint64", "cq_data", "Data for the completion (cq_data)", base.HEX)

numeric("uint8", "ref_kind", "Meaning of op_id (ref_kind)", base.DEC, REF_KINDS)
numeric("uint32", "op_id_valid", "Operation is known (op_id_valid)", base.DEC)
numeric("uint32", "emitter", "Reported by the operation's (emitter)", base.DEC, EMITTERS)
numeric("uint32", "prov_errno", "Error number of the provider (prov_errno)", base.DEC)

for array, name in pairs({ rma_iov = "Memory to access (rma_iov)", read_iov = "Memory to read from (read_iov)" }) do
    numeric("uint32", array .. "_count", "Number of pieces (" .. array .. "_count)", base.DEC)
    plain("none", array, name)
    numeric("uint64", array .. ".addr", "Address", base.HEX)
    numeric("uint64", array .. ".len", "Length", base.DEC)
    numeric("uint64", array .. ".key", "Key", base.HEX)
end

plain("none", "raw_address", "Address of the sender (raw_address)")
numeric("uint32", "raw_address.size", "Size", base.DEC)
plain("ipv6", "raw_address.gid", "GID")
numeric("uint16", "raw_address.qpn", "Queue pair", base.DEC)
numeric("uint32", "raw_address.connid", "Incarnation (connid)", base.HEX)

numeric("uint32", "nextra_p3", "Number of extra info words, plus 3 (nextra_p3)", base.DEC)
numeric("uint64", "extra_info", "Extra info", base.HEX)
numeric("uint64", "host_id", "Host (host_id)", base.HEX)
numeric("uint32", "device_version", "Vendor part of the network card (device_version)", base.HEX)
numeric("uint32", "user_recv_qp.qpn", "User receive queue pair", base.DEC)
numeric("uint32", "user_recv_qp.qkey", "Queue key of the user receive queue pair", base.HEX)
plain("bool", "hmem_p2p", "Network card reaches memory of accelerators (hmem_p2p)")

plain("bytes", "padding", "Padding")
plain("bytes", "payload", "Payload")
numeric("uint32", "payload_length", "Length of the payload", base.DEC)
plain("bool", "plain", "Message without a header, to a user queue pair")

-- Flags: the bit, and the families of packets that have it.
local FLAGS = {}
for _, flag in ipairs({
    { "raw_address", 0x0001, "Address of the sender follows", "request" },
    { "cq_data", 0x0002, "Data for the completion follows", "request" },
    { "msg", 0x0004, "Message", "request" },
    { "tagged", 0x0008, "Tagged message", "request" },
    { "rma", 0x0010, "Remote memory", "request" },
    { "atomic", 0x0020, "Atomic", "request" },
    { "read_nack", 0x2000, "Repeats a message that was answered by READ_NACK", "request" },
    { "host_id", 0x0001, "Host follows", "handshake" },
    { "device_version", 0x0002, "Vendor part of the network card follows", "handshake" },
    { "user_recv_qp", 0x0004, "User receive queue pair follows", "handshake" },
    { "hmem_p2p", 0x0008, "Field on memory of accelerators follows", "handshake" },
    { "emulated_read", 0x0080, "Grant for an emulated read", "cts" },
    { "connid", 0x8000, "Incarnation of the sender is there", "any" },
}) do
    local name, mask, description, family = flag[1], flag[2], flag[3], flag[4]
    local field = ProtoField.bool("efa.flags." .. name, description, 16, nil, mask)
    F["flags." .. name] = field
    FLAGS[#FLAGS + 1] = { name = name:upper(), field = field, mask = mask, family = family }
end
-- Flags that repeat the type of a request.
local KIND_FLAGS = { MSG = true, TAGGED = true, RMA = true, ATOMIC = true }
local RAW_ADDRESS, CQ_DATA, CONNID = 0x0001, 0x0002, 0x8000
local READ_NACK, EMULATED_READ = 0x2000, 0x0080
local HOST_ID, DEVICE_VERSION, USER_RECV_QP, HMEM_P2P = 0x0001, 0x0002, 0x0004, 0x0008

for _, extra in ipairs(EXTRAS) do
    local bit, name, kind = extra[1], extra[2], extra[3]
    local abbreviation = "extra." .. name:lower():gsub(" ", "_")
    -- A field of the byte that has the bit: masks beyond 32 bits don't work in all versions of Wireshark.
    extra.at, extra.mask = math.floor(bit / 8), math.floor(2 ^ (bit % 8))
    extra.field =
        ProtoField.bool("efa." .. abbreviation, ("%s (%s %d)"):format(name, kind, bit), 8, nil, extra.mask)
    F[abbreviation] = extra.field
end

local fields = {}
for _, field in pairs(F) do fields[#fields + 1] = field end
efa.fields = fields

local MALFORMED =
    ProtoExpert.new("efa.malformed", "Malformed packet", expert.group.MALFORMED, expert.severity.ERROR)
local CUT = ProtoExpert.new("efa.cut", "Cut by the capture", expert.group.UNDECODED, expert.severity.NOTE)
local FAILED = ProtoExpert.new("efa.failed", "Send failed", expert.group.SEQUENCE, expert.severity.WARN)
local REPORTED =
    ProtoExpert.new("efa.peer_error", "Operation failed at the peer", expert.group.RESPONSE_CODE, expert.severity.WARN)
local FLAG = ProtoExpert.new("efa.flag", "Flag that doesn't fit the type", expert.group.PROTOCOL, expert.severity.NOTE)
efa.experts = { MALFORMED, CUT, FAILED, REPORTED, FLAG }

-- Numbers -------------------------------------------------------------------------------------------------------------

local function has(flags, mask)
    return math.floor(flags / mask) % 2 == 1
end

-- `0x2a`, of up to 8 bytes.
local function hexadecimal(range)
    local digits = range:le_uint64():tohex():gsub("^0+", "")
    return "0x" .. (digits == "" and "0" or digits)
end

local function decimal(range)
    return tostring(range:le_uint64())
end

-- `0x0000002a`
local function connid_text(range)
    return ("0x%08x"):format(range:le_uint())
end

-- Taking headers off a packet -----------------------------------------------------------------------------------------

-- The rest of a datagram: `at` is the position, `length` that of the datagram on the link, `captured` that of what the
-- file has of it, all from the beginning of the datagram; `name` that of the packet's type.
local Cursor = {}
Cursor.__index = Cursor

-- Ends the dissection of a packet. A table tells it from errors of this script.
local function refuse(kind, text)
    error({ kind = kind, text = text }, 0)
end

function Cursor.new(tvb, length)
    local captured = math.min(tvb:len() - PSEUDO_HEADER, length)
    return setmetatable({ tvb = tvb, at = 0, length = length, captured = captured, name = "packet", text = {} }, Cursor)
end

function Cursor:malformed(format, ...)
    refuse(MALFORMED, ("%s: " .. format):format(self.name, ...))
end

-- The range of the next `size` bytes, which have to be there.
function Cursor:take(field, size)
    local needed = self.at + size
    if needed > self.length then
        self:malformed("%s ends at byte %.0f, the packet has %.0f", field, needed, self.length)
    end
    if needed > self.captured then
        refuse(CUT, ("%s: %s ends at byte %.0f, %.0f of the packet's %.0f were captured"):format(
            self.name, field, needed, self.captured, self.length))
    end
    local range = self.tvb(PSEUDO_HEADER + self.at, size)
    self.at = needed
    return range
end

-- Shows an operation's id, also under the name by which all of them are found.
local function add_operation(tree, name, range)
    local item = tree:add_le(F[name], range)
    if name ~= "op_id" then tree:add_le(F.op_id, range):set_hidden() end
    return item
end

local OPERATION_IDS = { send_id = true, recv_id = true, op_id = true }

-- Takes and shows one field of a fixed header, and keeps its text. `form` is `name`, `name:size`, `name?` for a connid
-- that is padding without the flag, or `id=name` where the error calls the field `id`.
function Cursor:field(tree, form, flags)
    local name, size = form:match("^([%w_]+):(%d+)$")
    local called, meant = form:match("^([%w_]+)=([%w_]+)$")
    name = name or called or form:gsub("%?$", "")
    local range = self:take(name, tonumber(size) or SIZES[name] or 4)
    name = meant or name
    if name == "header" or name == "pad" or name == "reserved" or name == "id" then
        tree:add(F.padding, range)
    elseif name == "connid" then
        self:connid(tree, range, has(flags, CONNID))
    elseif OPERATION_IDS[name] then
        add_operation(tree, name, range)
        self.text[name] = hexadecimal(range)
    else
        tree:add_le(F[name], range)
        self.text[name] = HEXADECIMAL[name] and hexadecimal(range) or decimal(range)
    end
    return range
end

function Cursor:connid(tree, range, valid)
    if valid then
        tree:add_le(F.connid, range)
        self.text.connid = connid_text(range)
    else
        tree:add(F.padding, range)
    end
end

-- An array of memory vectors, which the field `name`_count counts.
function Cursor:vectors(tree, name, count)
    if count > MAX_IOV then
        self:malformed("%s_count is %.0f, at most %d are allowed", name, count, MAX_IOV)
    end
    local array = self:take(name, 24 * count)
    local texts = {}
    for index = 0, count - 1 do
        local range = array(24 * index, 24)
        local addr, len, key = range(0, 8), range(8, 8), range(16, 8)
        local text = ("%s+%s key %s"):format(hexadecimal(addr), decimal(len), hexadecimal(key))
        local piece = tree:add(F[name], range):append_text((" [%d]: %s"):format(index, text))
        piece:add_le(F[name .. ".addr"], addr)
        piece:add_le(F[name .. ".len"], len)
        piece:add_le(F[name .. ".key"], key)
        texts[#texts + 1] = text
    end
    self.text[name] = "[" .. table.concat(texts, ", ") .. "]"
end

-- The optional headers of requests.
function Cursor:options(tree, flags)
    if has(flags, RAW_ADDRESS) then
        local size = self:take("raw_address_size", 4)
        if size:le_uint() < 32 then
            self:malformed("raw address size is %.0f, at least 32 is needed", size:le_uint())
        end
        local range = self:take("raw_address", size:le_uint())
        local gid, qpn, connid = range(0, 16), range(16, 2), range(20, 4)
        local text = ("[%s]:%d/%s"):format(tostring(gid:ipv6()), qpn:le_uint(), connid_text(connid))
        local address = tree:add(F.raw_address, range):append_text(": " .. text)
        address:add_le(F["raw_address.size"], size)
        address:add(F["raw_address.gid"], gid)
        address:add_le(F["raw_address.qpn"], qpn)
        address:add(F.padding, range(18, 2))
        address:add_le(F["raw_address.connid"], connid)
        -- Without a connid header, the incarnation is known by this.
        if not has(flags, CONNID) then address:add_le(F.connid, connid):set_hidden() end
        address:add(F.padding, range(24))
        self.text.raw_address = text
    end
    if has(flags, CQ_DATA) then
        local range = self:take("cq_data", 8)
        tree:add_le(F.cq_data, range)
        self.text.cq_data = hexadecimal(range)
    end
    if has(flags, CONNID) then self:connid(tree, self:take("connid", 4), true) end
end

-- One word of extra info, with the bits by their names. Bits of later words have no names yet.
local function extra_info(tree, index, range)
    local names = {}
    local item = tree:add_le(F.extra_info, range)
    if index == 0 then
        for _, extra in ipairs(EXTRAS) do
            local byte = range(extra.at, 1)
            item:add(extra.field, byte)
            if has(byte:uint(), extra.mask) then names[#names + 1] = extra[2] end
        end
    end
    item:append_text((" [%d]"):format(index) .. (#names > 0 and ": " or "") .. table.concat(names, ", "))
end

-- What follows the fixed header of HANDSHAKE. Returns the user receive queue pair, if there is one.
function Cursor:handshake(tree, count, flags)
    if count < 3 then self:malformed("nextra_p3 is %.0f, at least 3 is needed", count) end
    local words = self:take("extra_info", 8 * (count - 3))
    local texts = {}
    for index = 0, count - 4 do
        local range = words(8 * index, 8)
        extra_info(tree, index, range)
        texts[#texts + 1] = hexadecimal(range)
    end
    self.text.extra_info = "[" .. table.concat(texts, ", ") .. "]"
    if has(flags, CONNID) then
        local range = self:take("connid", 8)
        self:connid(tree, range(0, 4), true)
        tree:add(F.padding, range(4, 4))
    end
    if has(flags, HOST_ID) then
        local range = self:take("host_id", 8)
        tree:add_le(F.host_id, range)
        self.text.host_id = hexadecimal(range)
    end
    if has(flags, DEVICE_VERSION) then
        local range = self:take("device_version", 8)
        tree:add_le(F.device_version, range(0, 4))
        tree:add(F.padding, range(4, 4))
        self.text.device_version = hexadecimal(range(0, 4))
    end
    local user_recv_qpn
    if has(flags, USER_RECV_QP) then
        local range = self:take("user_recv_qp", 8)
        tree:add_le(F["user_recv_qp.qpn"], range(0, 4))
        tree:add_le(F["user_recv_qp.qkey"], range(4, 4))
        self.text.user_recv_qp = decimal(range(0, 4)) .. "/" .. connid_text(range(4, 4))
        user_recv_qpn = range(0, 4):le_uint()
    end
    if has(flags, HMEM_P2P) then
        local range = self:take("hmem_p2p", 8)
        local supported = range(0, 1):uint() ~= 0
        tree:add(F.hmem_p2p, range(0, 1), supported)
        tree:add(F.padding, range(1, 7))
        self.text.hmem_p2p = supported and "1" or "0"
    end
    return user_recv_qpn
end

-- Packets -------------------------------------------------------------------------------------------------------------

-- Shows the flags of a packet of this layout, and which of them don't fit. Parsers ignore those; peers of libfabric
-- 1.15 and older read the flags that repeat the type.
local function flag_bits(layout, range, flags, item)
    local family = REQUESTS[layout[2]] and "request" or layout[2]
    local tagged = layout[1]:match("TAGRTM$") ~= nil
    local expected = { MSG = tagged or layout[1]:match("MSGRTM$") ~= nil, TAGGED = tagged, ATOMIC = layout[2] == "rta" }
    local unknown, missing, wrong = flags, {}, {}
    if layout[2] == "never_sent" then family = "request" end
    for _, flag in ipairs(FLAGS) do
        if flag.family == family or flag.family == "any" then
            local found = has(flags, flag.mask)
            item:add_le(flag.field, range)
            if found then unknown = unknown - flag.mask end
            local repeats = KIND_FLAGS[flag.name] and family == "request"
            if repeats and expected[flag.name] and not found then missing[#missing + 1] = flag.name end
            -- The specification requires RMA where there is no other such flag; nobody sends it.
            local allowed = flag.name == "RMA" and not expected.MSG and not expected.ATOMIC
            if repeats and found and not expected[flag.name] and not allowed then wrong[#wrong + 1] = flag.name end
        end
    end
    if #missing > 0 then item:add_proto_expert_info(FLAG, "missing kind flags: " .. table.concat(missing, ", ")) end
    if #wrong > 0 then item:add_proto_expert_info(FLAG, "wrong kind flags: " .. table.concat(wrong, ", ")) end
    if unknown ~= 0 then item:add_proto_expert_info(FLAG, ("unknown flags: 0x%04x"):format(unknown)) end
end

-- The base header. Returns the layout of the packet's type and the flags.
local function base_header(cursor, tree)
    local first = cursor.captured > 0 and cursor.tvb(PSEUDO_HEADER, 1):uint()
    if cursor.length < 4 then cursor.name = TYPE_NAMES[first] or "packet" end
    local packet_type, version = cursor:take("type", 1), cursor:take("version", 1)
    local range = cursor:take("flags", 2)
    local number, flags = packet_type:uint(), range:le_uint()
    tree:add(F.type, packet_type)
    tree:add(F.version, version)
    local layout = version:uint() == VERSION and TYPES[number]
    local bits = tree:add_le(F.flags, range)
    if layout then flag_bits(layout, range, flags, bits) end
    if version:uint() ~= VERSION then
        refuse(MALFORMED, ("protocol version %d, only %d is known"):format(version:uint(), VERSION))
    elseif not layout then
        local why = "unknown"
        if number == 1 or number == 2 then why = "deprecated" end
        if number == 6 or number == 131 or number == 132 then why = "reserved" end
        refuse(MALFORMED, ("packet type %d is %s"):format(number, why))
    end
    return layout, flags
end

-- The layout of a type whose packets have several, by their lengths.
local function form_of(layout, cursor, flags)
    local text = cursor.text
    if layout[2] == "eor" and cursor.length == 12 and not has(flags, CONNID) then
        text.form = "short"
        return EOR_SHORT
    elseif layout[2] == "peer_error" and cursor.length >= 28 then
        text.form = "form=28"
        return PEER_ERROR_FLAGGED
    elseif layout[2] == "peer_error" and cursor.length >= 24 then
        text.form = "form=24"
        return PEER_ERROR_MARKED
    end
    return layout
end

-- Texts that don't follow from a field alone.
local function name_values(layout, cursor, values, flags)
    local text, family = cursor.text, layout[2]
    if family == "rta" then
        text.datatype = DATATYPES[values.datatype] or text.datatype
        text.op = OPERATIONS[values.op] or text.op
    elseif family == "peer_error" then
        text.emitter = EMITTERS[values.emitter] or text.emitter
        if values.op_id_valid == 0 or (values.emitter and not values.op_id_valid and values.op_id == NO_OPERATION) then
            text.op_id = nil
        end
    elseif family == "cts" and has(flags, EMULATED_READ) then
        text.emulated_read = "emulated_read"
    elseif family == "rtm" and has(flags, READ_NACK) then
        text.read_nack = "read_nack"
    elseif family == "never_sent" then
        text.header = ("(never sent by any release) header=%d"):format(cursor.at)
    end
end

-- What isn't shown as `name=value`.
local ALONE = { form = true, emulated_read = true, read_nack = true, header = true }

-- Adds the text of each field in `names` that the packet has.
local function append_texts(parts, names, text)
    for name in names:gmatch("[%w_]+") do
        if text[name] then parts[#parts + 1] = ALONE[name] and text[name] or (name .. "=" .. text[name]) end
    end
end

-- `EAGER_TAGRTM msg_id=7 tag=0x2a payload=5`, as efa-proto displays a packet; datatypes and operations by name.
local function describe(layout, cursor)
    local parts, text = { layout[1] }, cursor.text
    local request = REQUESTS[layout[2]]
    if layout[2] == "rtw" or layout[2] == "rtr" then append_texts(parts, "rma_iov", text) end
    for form in (layout[4] or layout[3]):gmatch("%S+") do
        local name = form:match("=([%w_]+)$") or form:match("^[%w_]+")
        if name == "rma_iov_count" then
            if layout[2] == "rta" then append_texts(parts, "rma_iov", text) end
        elseif name == "read_iov_count" then
            -- Behind all fields.
        elseif not (request and name == "connid") then
            append_texts(parts, name, text)
        end
    end
    append_texts(parts, "read_iov", text)
    if request then append_texts(parts, "raw_address cq_data connid", text) end
    return table.concat(parts, " ")
end

local SEGMENTS = { READRSP = true, CTSDATA = true, ATOMRSP = true }

-- The payload: all bytes behind the header.
local function payload(cursor, tree)
    local length = cursor.length - cursor.at
    local captured = cursor.captured - cursor.at
    tree:add(F.payload_length, length):set_generated()
    if captured > 0 then tree:add(F.payload, cursor.tvb(PSEUDO_HEADER + cursor.at, captured)) end
    return length > 0 and (" payload=%.0f"):format(length) or ""
end

-- Dissects a packet. Returns its text and the user receive queue pair that it announces.
local function packet(cursor, tree)
    local layout, flags = base_header(cursor, tree)
    cursor.name = layout[1]
    layout = form_of(layout, cursor, flags)
    local values, family = {}, layout[2]
    for form in layout[3]:gmatch("%S+") do
        local range = cursor:field(tree, form, flags)
        if range:len() == 4 then values[form] = range:le_uint() end
    end
    local user_recv_qpn
    if REQUESTS[family] then
        if values.rma_iov_count then cursor:vectors(tree, "rma_iov", values.rma_iov_count) end
        cursor:options(tree, flags)
        if values.read_iov_count then cursor:vectors(tree, "read_iov", values.read_iov_count) end
    elseif family == "handshake" then
        user_recv_qpn = cursor:handshake(tree, values.nextra_p3, flags)
    elseif family == "ctsdata" and has(flags, CONNID) then
        local range = cursor:take("connid", 8)
        cursor:connid(tree, range(0, 4), true)
        tree:add(F.padding, range(4, 4))
    end
    if SEGMENTS[layout[1]] and cursor.text.seg_length ~= ("%.0f"):format(cursor.length - cursor.at) then
        cursor:malformed("seg_length is %s, the packet carries %.0f bytes", cursor.text.seg_length,
            cursor.length - cursor.at)
    end
    name_values(layout, cursor, values, flags)
    local text = describe(layout, cursor)
    if family == "peer_error" then tree:add_proto_expert_info(REPORTED) end
    return text .. payload(cursor, tree), user_recv_qpn
end

-- User queue pairs ----------------------------------------------------------------------------------------------------

-- Those that HANDSHAKEs announced so far, by GID and number; their packets have no header. What a packet is depends on
-- those before it, so it is decided when the file is read first, and kept by the packet's number.
local user_queues, user_queue_count, without_header = {}, 0, {}

function efa.init()
    user_queues, user_queue_count, without_header = {}, 0, {}
end

local function queue_pair(gid, qpn)
    return ("%s/%d"):format(tostring(gid:bytes()), qpn)
end

-- Whether a packet from `source` to `destination` has no header.
local function is_plain(pinfo, source, destination)
    if not pinfo.visited then
        -- User queue pairs don't send: one that sends got the number anew.
        if user_queues[source] then
            user_queues[source], user_queue_count = nil, user_queue_count - 1
        end
        without_header[pinfo.number] = user_queues[destination]
    end
    return without_header[pinfo.number]
end

-- Remembers the user queue pair that a HANDSHAKE from this source announces.
local function learn(pinfo, gid, source_qpn, qpn)
    if pinfo.visited or not qpn or qpn > 0xffff or qpn == source_qpn or user_queue_count >= MAX_USER_QUEUES then
        return
    end
    local id = queue_pair(gid, qpn)
    if not user_queues[id] then
        user_queues[id], user_queue_count = true, user_queue_count + 1
    end
end

-- Frames --------------------------------------------------------------------------------------------------------------

local function show_pseudo_header(tvb, tree)
    local event, status = tvb(1, 1), tvb(2, 1)
    local item = tree:add(F.capture, tvb(0, PSEUDO_HEADER))
    item:append_text((": %s, %s/%d → %s/%d"):format(EVENTS[event:uint()], tostring(tvb(8, 16):ipv6()),
        tvb(4, 2):le_uint(), tostring(tvb(24, 16):ipv6()), tvb(6, 2):le_uint()))
    item:add(F.capture_version, tvb(0, 1))
    item:add(F.event, event)
    local shown = item:add(F.status, status)
    if event:uint() == 2 then
        shown:add_proto_expert_info(FAILED, STATUSES[status:uint()] or ("status %d"):format(status:uint()))
    end
    item:add(F.padding, tvb(3, 1))
    for _, field in ipairs({ { "qpn", 4, 2 }, { "gid", 8, 16 } }) do
        local name, at, size = field[1], field[2], field[3]
        for index, side in ipairs({ "src_", "dst_" }) do
            local range = tvb(at + (index - 1) * size, size)
            if name == "qpn" then
                item:add_le(F[side .. name], range)
                item:add_le(F[name], range):set_hidden()
            else
                item:add(F[side .. name], range)
                item:add(F[name], range):set_hidden()
            end
        end
    end
end

-- The text of a datagram, which is shown in `tree`.
local function datagram(tvb, pinfo, tree)
    local source_gid, source_qpn = tvb(8, 16), tvb(4, 2):le_uint()
    local cursor = Cursor.new(tvb, tvb:reported_len() - PSEUDO_HEADER)
    if is_plain(pinfo, queue_pair(source_gid, source_qpn), queue_pair(tvb(24, 16), tvb(6, 2):le_uint())) then
        tree:add(F.plain, true):set_generated()
        payload(cursor, tree)
        return ("plain payload=%.0f"):format(cursor.length)
    end
    local header = cursor.captured > 0 and tree:add(F.header, tvb(PSEUDO_HEADER)) or tree
    local ok, text, user_recv_qpn = pcall(packet, cursor, header)
    if ok then
        header:set_len(cursor.at)
        header:append_text(": " .. text)
        learn(pinfo, source_gid, source_qpn, user_recv_qpn)
        return text
    end
    local refusal = text
    if type(text) ~= "table" then refusal = { kind = MALFORMED, text = "this script fails: " .. tostring(text) } end
    header:add_proto_expert_info(refusal.kind, refusal.text)
    if refusal.kind == CUT then return "cut, " .. refusal.text end
    return ("malformed, %.0f bytes: %s"):format(cursor.length, refusal.text)
end

-- Whether a frame of this link type, which is anybody's, begins as captures of the software device do.
local function is_ours(tvb)
    if tvb:len() < PSEUDO_HEADER then return false end
    local version, event, status = tvb(0, 1):uint(), tvb(1, 1):uint(), tvb(2, 1):uint()
    return version == 1 and EVENTS[event] ~= nil and (event == 2) == (status ~= 0)
end

local function dissect(tvb, pinfo, root)
    local event, status = tvb(1, 1):uint(), tvb(2, 1):uint()
    local source_qpn, destination_qpn = tvb(4, 2):le_uint(), tvb(6, 2):le_uint()
    pinfo.cols.protocol = "EFA"
    pinfo.src, pinfo.dst = Address.ipv6(tostring(tvb(8, 16):ipv6())), Address.ipv6(tostring(tvb(24, 16):ipv6()))
    pinfo.src_port, pinfo.dst_port = source_qpn, destination_qpn
    local tree = root:add(efa, tvb())
    show_pseudo_header(tvb, tree)
    local text = datagram(tvb, pinfo, tree)
    tree:append_text(", " .. text:match("^[%w_]+"))
    local failure = event == 2 and (" (%s)"):format(STATUSES[status] or ("status %d"):format(status)) or ""
    pinfo.cols.info = ("%s %d → %d %s%s"):format(EVENTS_IN_INFO[event], source_qpn, destination_qpn, text, failure)
    return tvb:len()
end

-- Frames of others go to the dissector that had the link type before: that of the preferences for DLT_USER.
local encapsulations = DissectorTable.get("wtap_encap")
local user0 = (wtap_encaps or wtap).USER0
local previous = encapsulations:get_dissector(user0)
-- The preferences may name this dissector.
local forwarding = false

function efa.dissector(tvb, pinfo, root)
    if is_ours(tvb) then return dissect(tvb, pinfo, root) end
    if not previous or forwarding then return 0 end
    forwarding = true
    local ok, length = pcall(previous.call, previous, tvb, pinfo, root)
    forwarding = false
    return ok and length or tvb:len()
end

encapsulations:add(user0, efa)
