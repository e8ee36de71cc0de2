"""The libraries that scripts find beside Lua's own, `cjson`, `cmsgpack`, `struct` and `bit`, give what those of Redis
7.0 give: each call is made in both servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from against_redis import SLOW_IS_FINE, Pair
from hypothesis import given, settings
from hypothesis import strategies as st

SHOW = r"""
local function show(value)
    if type(value) == 'number' then return string.format('%.17g', value) end
    if type(value) == 'string' then return "'" .. value .. "'" end
    if type(value) ~= 'table' then return tostring(value) end
    local parts = {}
    for key, item in pairs(value) do parts[#parts + 1] = show(key) .. '=' .. show(item) end
    return '{' .. table.concat(parts, ',') .. '}'
end
local function all(...)
    local shown = {}
    for i = 1, select('#', ...) do shown[i] = show((select(i, ...))) end
    return table.concat(shown, ' ')
end
"""
"""What a call gave, with its types."""


@pytest.fixture(scope="module")
def both(peers: Any) -> Iterator[Pair]:
    connected = Pair(peers, 2)
    connected.run((b"SCRIPT", b"FLUSH"))
    yield connected
    connected.close()


def compare(both: Pair, script: str, *arguments: bytes) -> tuple[str, Any]:
    (reply,) = both.run((b"EVAL", (SHOW + script).encode(), b"0", *arguments))
    return reply


def compare_calls(both: Pair, calls: str) -> None:
    """Calls, one a line, each as a script of its own, so that the place of an error is compared too."""
    for call in calls.strip().split("\n"):
        compare(both, f"return all({call})")


# ---- fixed cases ---------------------------------------------------------------------------------------------------

ENCODED = r"""
cjson.encode(nil)
cjson.encode(true), cjson.encode(false), cjson.encode(cjson.null)
cjson.encode(1), cjson.encode(-1), cjson.encode(0), cjson.encode(-0), cjson.encode(1.5), cjson.encode(0.1)
cjson.encode(1e14), cjson.encode(1e15), cjson.encode(123456789012345), cjson.encode(1/3), cjson.encode(1e300)
cjson.encode(5e-324)
cjson.encode('12'), cjson.encode(''), cjson.encode('a"b\\c/d')
cjson.encode('\0\1\2\3\4\5\6\7\8\9\10\11\12\13\14\15\16\17\18\19\20\21\22\23\24\25\26\27\28\29\30\31\127\128\255')
cjson.encode({}), cjson.encode({{}}), cjson.encode({a={}}), cjson.encode({1, 2, {3, {4}}})
cjson.encode({1, nil, 3}), cjson.encode({nil, nil, 3}), cjson.encode({[3]=1}), cjson.encode({[10]=1})
cjson.encode({[11]=1})
cjson.encode({[1]=1,[2]=2,[3]=3,[4]=4,[5]=5,[11]=1})
cjson.encode({[1]=1,[2]=2,[3]=3,[4]=4,[11]=1})
cjson.encode({[0]=1}), cjson.encode({[-1]=1}), cjson.encode({[1.5]=1}), cjson.encode({[1]=1, x=2})
cjson.encode({[1e10]=1})
cjson.encode({['1']=1}), cjson.encode({['a/"']=1})
cjson.encode({[1e15]=1}), cjson.encode({[2147483647]=1})
cjson.encode({[2147483648]=1})
cjson.encode({[true]=1})
cjson.encode({[{}]=1})
cjson.encode({a=function() end})
cjson.encode(print)
cjson.encode(coroutine.create(function() end))
cjson.encode(0/0)
cjson.encode(1/0)
cjson.encode({-1/0})
cjson.encode({[1/0]=1})
cjson.encode()
cjson.encode(1, 2)
cjson.encode(redis)
cjson.encode(cjson)
cjson.encode(setmetatable({}, {__index={1, 2}}))
cjson.encode(KEYS), cjson.encode(ARGV)
cjson._NAME, cjson._VERSION, type(cjson.null), cjson.null == cjson.new().null
cjson.nothing
pcall(cjson.encode)
pcall(cjson.encode, 1/0)
pcall(cjson.decode, '[1')
"""

DECODED = r"""
cjson.decode('null'), cjson.decode('true'), cjson.decode('false'), cjson.decode('1'), cjson.decode('"x"')
cjson.decode(' \t\r\n[ 1 ,\n2 ] '), cjson.decode('{}'), cjson.decode('[]'), cjson.decode('{"a":{"b":[{}]}}')
cjson.decode('{"a":1,"a":2}'), cjson.decode('{"":1}'), cjson.decode('[null,1]'), cjson.decode('{"a":null}')
cjson.decode('"\\"\\\\\\/\\b\\f\\n\\r\\t"'), cjson.decode('"a\\nb"'), cjson.decode('"\\u0041\\u00e9\\u20ac\\u0000z"')
cjson.decode('"\\ud83d\\ude00"'), cjson.decode('"\\uD800\\uDC00"'), cjson.decode('"\\udbff\\udfff"')
cjson.decode('"\\ud83d"')
cjson.decode('"\\ud83dx"')
cjson.decode('"\\ud83d\\u0041"')
cjson.decode('"\\ud83d\\ude0"')
cjson.decode('"\\ude00"')
cjson.decode('"\\u12"')
cjson.decode('"\\u12g4"')
cjson.decode('"\\x"')
cjson.decode('"\\')
cjson.decode('"abc')
cjson.decode('"\1\9\10\127\128\255"')
cjson.decode('"ab\0cd"')
cjson.decode('')
cjson.decode(' ')
cjson.decode('[')
cjson.decode('[1')
cjson.decode('[1,')
cjson.decode('[1,]')
cjson.decode('[,1]')
cjson.decode('[1 2]')
cjson.decode('[1]]')
cjson.decode('{')
cjson.decode('{"a"')
cjson.decode('{"a":')
cjson.decode('{"a":1')
cjson.decode('{"a":1,')
cjson.decode('{"a":1,}')
cjson.decode('{"a" 1}')
cjson.decode('{1:2}')
cjson.decode('{a:2}')
cjson.decode('{"a":}')
cjson.decode('{"a":1]')
cjson.decode('[1}')
cjson.decode('1 2')
cjson.decode('tru')
cjson.decode('trueish')
cjson.decode('nul')
cjson.decode('nulls')
cjson.decode('falsey')
cjson.decode('x')
cjson.decode("'a'")
cjson.decode('12\0zz'), cjson.decode('[]\0')
cjson.decode('1\0')
cjson.decode('\0')
cjson.decode('\0001')
cjson.decode('-'), cjson.decode('1')
cjson.decode('+1'), cjson.decode('01'), cjson.decode('-01'), cjson.decode('0x1F'), cjson.decode('-0x1p4')
cjson.decode('1.'), cjson.decode('-.5')
cjson.decode('.5')
cjson.decode('1e5'), cjson.decode('1E+5'), cjson.decode('1e-5'), cjson.decode('1e400'), cjson.decode('-0')
cjson.decode('123456789012345678901234567890')
cjson.decode('1e')
cjson.decode('1e+')
cjson.decode('--1')
cjson.decode('nan'), cjson.decode('NaN'), cjson.decode('-nan'), cjson.decode('inf'), cjson.decode('Infinity')
cjson.decode('-INFINITY'), cjson.decode('+inf')
cjson.decode('infinit')
cjson.decode('iNfx')
cjson.decode('nan(12)')
cjson.decode(12), cjson.decode('12')
cjson.decode()
cjson.decode(nil)
cjson.decode({})
cjson.decode('1', '2')
cjson.decode('[1,2'), 1
cjson.decode('{"a":[1,{"b":tru}]}')
#cjson.decode(string.rep('[', 1000) .. string.rep(']', 1000))
cjson.decode(string.rep('[', 1001))
cjson.decode(string.rep('{"a":', 1001))
cjson.decode(string.rep('[', 1000))
"""

SETTINGS = r"""
return all(c.encode_sparse_array())
return all(c.encode_sparse_array(true)), all(c.encode_sparse_array(nil, 3, 4))
c.encode_sparse_array(true) return c.encode({[100]=1})
c.encode_sparse_array(false, 0) return c.encode({[100]=1})
c.encode_sparse_array(false, 1, 3) return c.encode({1, 2, nil, nil, 5})
c.encode_sparse_array(false, 5, 30) return c.encode({[30]=1})
c.encode_sparse_array(false, 5, 30) return c.encode({[31]=1})
return all(c.encode_sparse_array('on')), all(c.encode_sparse_array('off'))
return c.encode_sparse_array('x')
return c.encode_sparse_array(1)
return c.encode_sparse_array(nil, -1)
return c.encode_sparse_array(nil, 1, -1)
return c.encode_sparse_array(nil, 'x')
return c.encode_sparse_array(nil, nil, nil, nil)
return all(c.encode_max_depth(), c.encode_max_depth(3), c.encode_max_depth(nil), c.encode_max_depth('7'))
return c.encode_max_depth(0)
return c.encode_max_depth('x')
return c.encode_max_depth(1, 2)
c.encode_max_depth(2) return c.encode({{1}})
c.encode_max_depth(2) return c.encode({{{}}})
local t = {} t[1] = t return c.encode(t)
local t = {} t.a = t return c.encode(t)
return all(c.decode_max_depth(), c.decode_max_depth(3), c.decode_max_depth(2.9))
return c.decode_max_depth(-1)
c.decode_max_depth(2) return all(c.decode('[[1],{}]'))
c.decode_max_depth(2) return all(c.decode('[[1],{"a":[]}]'))
c.decode_max_depth(2) return all(c.decode('{"a":{"b":{}}}'))
return all(c.encode_number_precision(), c.encode_number_precision(3))
c.encode_number_precision(3) return c.encode({3.14159, 123456, 0.00012345})
c.encode_number_precision(1) return c.encode({3.14159, 123456, 0.00012345, [5.25]=1})
return c.encode_number_precision(15)
return c.encode_number_precision(0)
return all(c.encode_keep_buffer(), c.encode_keep_buffer(false), c.encode_keep_buffer('on'), c.encode_keep_buffer(nil))
return c.encode_keep_buffer('x')
return all(c.encode_invalid_numbers(), c.encode_invalid_numbers(true))
return all(c.encode_invalid_numbers('null'), c.encode_invalid_numbers('off'))
return c.encode_invalid_numbers('x')
return c.encode_invalid_numbers(5)
c.encode_invalid_numbers(true) return c.encode({0/0, -(0/0), 1/0, -1/0, 1})
c.encode_invalid_numbers('null') return c.encode({0/0, -(0/0), 1/0, -1/0, 1})
c.encode_invalid_numbers('null') return c.encode({[1/0]=1})
return all(c.decode_invalid_numbers(), c.decode_invalid_numbers(false), c.decode_invalid_numbers('on'))
return c.decode_invalid_numbers('null')
c.decode_invalid_numbers(false) return all(c.decode('[1,-1,0,-0.5,10,1e5,0.5]'))
c.decode_invalid_numbers(false) return all(c.decode('[1,nan]'))
c.decode_invalid_numbers(false) return all(c.decode('-nan'))
c.decode_invalid_numbers(false) return all(c.decode('-inf'))
c.decode_invalid_numbers(false) return all(c.decode('inf'))
c.decode_invalid_numbers(false) return all(c.decode('+1'))
c.decode_invalid_numbers(false) return all(c.decode('01'))
c.decode_invalid_numbers(false) return all(c.decode('0x1'))
c.decode_invalid_numbers(false) return all(c.decode('-0x1'))
c.decode_invalid_numbers(false) return all(c.decode('1.'))
c.decode_invalid_numbers(false) return all(c.decode('-'))
c.mine = 1 return all(c.mine, cjson.mine)
return all(c.new(1, 2).encode({}))
c.encode_max_depth(1) return c.new().encode({{}}) .. cjson.encode({{}})
"""
"""Settings of a table of one's own, which `c` is."""

STRUCT = r"""
struct.pack('bBhHlLTiI', -1, 255, -2, 65535, -3, 3, 4, -5, 5)
struct.pack('>bBhHlLTiI', -1, 255, -2, 65535, -3, 3, 4, -5, 5)
struct.pack('fd>fd<fd', 1.5, 2.5, 1.5, 2.5, 1/3, 1/3), struct.pack('f', 1e300), struct.pack('d', 0/0)
struct.pack('sc0c3c', 'ab', 'cd', 'efgh', 'xyz')
struct.pack('i1i2i3i4i5i6i7i8i9i16i32', 1, 2, 3, 4, 5, 6, 7, 8, 9, -10, -11)
struct.pack('>i3>i9', -2, -2), struct.pack('i0', 5)
struct.pack('!ibxhd!2d!4i3', 1, 2, 3, 4, 5, 6), struct.pack('!bi', 1, 2), struct.pack('!1bi', 1, 2)
struct.pack('!16bi16', 1, 2)
struct.pack('L', 1e20), struct.pack('L', -1e20), struct.pack('L', 0/0), struct.pack('l', 1e19)
struct.pack('B', 256.9), struct.pack('b', -1.9)
struct.pack('i', '12'), struct.pack('s', 12)
struct.pack(''), struct.pack('  '), struct.pack('<>! ')
struct.pack()
struct.pack('i')
struct.pack('ii', 1)
struct.pack('i', 'x')
struct.pack('s')
struct.pack('s', {})
struct.pack('c5', 'abc')
struct.pack('ic5', 1, 'abc')
struct.pack('z', 1)
struct.pack('=', 1)
struct.pack('5')
struct.pack('\200')
struct.pack('i33', 1)
struct.pack('i99999999999', 1)
struct.pack('i2147483647', 1)
struct.pack('c2147483648', 'x')
struct.pack('!3')
struct.pack('!0')
struct.unpack('bBhH', '\255\255\255\255\255\255'), struct.unpack('>h', '\1\2')
struct.unpack('>h', '\1\2')
struct.unpack('i3i5I3', '\255\255\255\1\2\3\4\5\255\255\255')
struct.unpack('i9', '\255\255\255\255\255\255\255\255\255')
struct.unpack('>i9i10', '\255\255\255\255\255\255\255\255\255\1\1\1\1\1\1\1\1\1\1')
struct.unpack('i0', 'abc')
struct.unpack('lL', '\255\255\255\255\255\255\255\255\255\255\255\255\255\255\255\255')
struct.unpack('fd', struct.pack('fd', 1/3, 1/3))
struct.unpack('ss', 'ab\0\0cd')
struct.unpack('s', 'abc')
struct.unpack('bc0s', '\3abcde\0')
struct.unpack('dc0', struct.pack('d', 1.9) .. 'abc')
struct.unpack('dc0', struct.pack('d', 0/0) .. 'abc')
struct.unpack('dc0', struct.pack('d', -0.5) .. 'abc')
struct.unpack('bc0', '\255abc')
struct.unpack('bc0', '\4abc')
struct.unpack('c0', 'abc')
struct.unpack('c1c0', '2abc')
struct.unpack('c1c0', 'xabc')
struct.unpack('c2xc', 'abcd')
struct.unpack('!bi', '\1\0\0\0\2\0\0\0')
struct.unpack('!bi', '\1\0\0\0\2\0\0')
struct.unpack('b', 'abc', 2), struct.unpack('b', 'abc', '3')
struct.unpack('b', 'abc', 3)
struct.unpack('b', 'abc', 4)
struct.unpack('s', 'abc', 4)
struct.unpack('', 'abc', 9)
struct.unpack('', 'abc', -5)
struct.unpack('b', 'abc', -5)
struct.unpack('b', 'abc', 0)
struct.unpack('b', 'abc', 'x')
struct.unpack('b')
struct.unpack('z', 'abc')
struct.unpack('i', 'abc')
struct.unpack('c9', 'abc')
struct.unpack(string.rep('b', 9000), string.rep('x', 9000))
struct.size('bBhHlLTiIfdx'), struct.size('!bd'), struct.size('!4bd'), struct.size('c10c'), struct.size('')
struct.size('i3!i3d')
struct.size('c2147483647c2147483647')
struct.size('s')
struct.size('c0')
struct.size('z5Q'), struct.size('<>! ')
struct.size('=')
struct.size('!6')
struct.size()
struct.size({})
"""

BITS = r"""
bit.tobit(0xffffffff), bit.tobit(0xffffffff + 1), bit.tobit(-1.5), bit.tobit(1.5), bit.tobit(2.5)
bit.tobit(2^40 + 1234), bit.tobit('7')
bit.tobit(1e15), bit.tobit(1e17), bit.tobit(-1e17), bit.tobit(1/0), bit.tobit(0/0)
bit.tohex(1), bit.tohex(-1), bit.tohex(-1, 4), bit.tohex(0x21, 4), bit.tohex(0xab, -4), bit.tohex(0x87654321, 0)
bit.tohex(1, 99), bit.tohex(0xabc, -99)
bit.tohex(1, 2147483648), bit.tohex(1, -2147483648)
bit.bnot(0), bit.bnot(-1), bit.bnot(0x12345678)
bit.bor(1, 2, 4, 8), bit.band(0x12345678, 0xff), bit.bxor(0xa5a5f0f0, 0xaa55ff00), bit.bor(1), bit.band(1), bit.bxor(1)
bit.lshift(1, 0), bit.lshift(1, 8), bit.lshift(1, 40), bit.lshift(0x87654321, 12), bit.lshift(1, -1)
bit.rshift(256, 8), bit.rshift(-256, 8), bit.rshift(0x87654321, 12), bit.rshift(1, 32)
bit.arshift(256, 8), bit.arshift(-256, 8), bit.arshift(0x87654321, 12), bit.arshift(-1, 31), bit.arshift(-1, 0)
bit.rol(0x12345678, 12), bit.ror(0x12345678, 12), bit.rol(1, 0), bit.ror(1, 0), bit.rol(1, 32), bit.ror(1, 33)
bit.bswap(0x12345678), bit.bswap(0x78563412)
bit.tobit()
bit.tobit('x')
bit.tobit(nil)
bit.tobit({})
bit.band()
bit.bor(1, 'x')
bit.lshift(1)
bit.tohex(1, 'x')
bit.bswap()
"""

PACKED = r"""
cmsgpack.pack(nil, true, false, cjson.null, print)
cmsgpack.pack(0, 127, 128, 255, 256, 65535, 65536, 4294967295, 4294967296, 2^53, 2^63, 2^64, 1e300)
cmsgpack.pack(-0, -1, -32, -33, -128, -129, -32768, -32769, -2147483648, -2147483649, -2^53, -2^63, -2^64)
cmsgpack.pack(0.5, 0.1, -1.5, 1/3, 1e-300, 1/0, -1/0, 0/0)
cmsgpack.pack('', 'a', string.rep('x', 31), string.rep('x', 32), string.rep('x', 255), string.rep('x', 256))
cmsgpack.pack(string.rep('x', 65535)), cmsgpack.pack(string.rep('x', 65536))
cmsgpack.pack({}, {1}, {1, {2, {}}}, {a=1}, {a={b={}}}, {[1]=1, [2]=2, [4]=4}, {nil, 2}, {[1.5]=1}, {[0]=1}, {[1e10]=1})
cmsgpack.pack({[true]=1}), cmsgpack.pack({[{}]={}}), cmsgpack.pack({1, 2, x=3}), cmsgpack.pack({print})
cmsgpack.pack((function() local t = {} for i = 1, 15 do t[i] = i end return t end)())
cmsgpack.pack((function() local t = {} for i = 1, 16 do t[i] = i end return t end)())
cmsgpack.pack((function() local t = {} for i = 1, 70000 do t[i] = i end return t end)())
cmsgpack.pack((function() local t = {} for i = 1, 16 do t['k' .. i] = i end return t end)())
#cmsgpack.pack((function() local t = {} for i = 1, 70000 do t['k' .. i] = i end return t end)())
cmsgpack.pack((function() local t = {} for i = 1, 15 do t = {t} end return t end)())
cmsgpack.pack((function() local t = {} for i = 1, 16 do t = {t} end return t end)())
cmsgpack.pack((function() local t = {} t[1] = t return t end)())
cmsgpack.pack((function() local t = {} t.a = t return t end)())
cmsgpack.pack()
pcall(cmsgpack.pack)
cmsgpack.pack(math)
cmsgpack.unpack('\192\194\195'), cmsgpack.unpack('\0\127\224\255')
cmsgpack.unpack('\0\127\224\255')
cmsgpack.unpack('\204\255\205\255\255\206\255\255\255\255\207\255\255\255\255\255\255\255\255')
cmsgpack.unpack('\207\127\255\255\255\255\255\255\255')
cmsgpack.unpack('\208\255\209\255\255\210\255\255\255\255\211\255\255\255\255\255\255\255\255')
cmsgpack.unpack('\208\127\209\127\1\210\127\1\1\1\211\127\1\1\1\1\1\1\1\211\128\0\0\0\0\0\0\0')
cmsgpack.unpack('\202\63\128\0\0\203\63\240\0\0\0\0\0\0\202\127\192\0\0')
cmsgpack.unpack('\160\162ab\217\2ab\218\0\2ab\219\0\0\0\2ab')
cmsgpack.unpack('\144\146\1\2\220\0\1\7\221\0\0\0\1\7\128\129\161a\1\222\0\1\1\2\223\0\0\0\1\1\2')
cmsgpack.unpack('')
cmsgpack.unpack('\193')
cmsgpack.unpack('\196\1a')
cmsgpack.unpack('\199')
cmsgpack.unpack('\216')
cmsgpack.unpack('\1\193')
cmsgpack.unpack('\146\1\193')
cmsgpack.unpack('\129\193\1')
cmsgpack.unpack('\204')
cmsgpack.unpack('\205\1')
cmsgpack.unpack('\206\1\1\1')
cmsgpack.unpack('\207\1\1\1\1\1\1\1')
cmsgpack.unpack('\203\1\1\1\1\1\1\1')
cmsgpack.unpack('\162a')
cmsgpack.unpack('\217')
cmsgpack.unpack('\217\5ab')
cmsgpack.unpack('\218\0')
cmsgpack.unpack('\219\255\255\255\255ab')
cmsgpack.unpack('\146\1')
cmsgpack.unpack('\220\0')
cmsgpack.unpack('\221\255\255\255\255\1')
cmsgpack.unpack('\129\1')
cmsgpack.unpack('\223\255\255\255\255\1\1')
cmsgpack.unpack('\129\192\1')
cmsgpack.unpack('\129\202\127\192\0\0\1')
cmsgpack.unpack('\130\1\2\1\3'), cmsgpack.unpack('\129\1\192'), cmsgpack.unpack('\146\192\1')
cmsgpack.unpack('\1\2', 'x')
cmsgpack.unpack('', 'x')
cmsgpack.unpack(12)
cmsgpack.unpack()
cmsgpack.unpack({})
cmsgpack.unpack(string.rep('\145', 3000))
cmsgpack.unpack(string.rep('\145', 10000))
cmsgpack.unpack(string.rep('\129', 3000))
cmsgpack.unpack(string.rep('\129', 10000))
cmsgpack.unpack(string.rep('\129\1', 5000))
cmsgpack.unpack(string.rep('\1', 10000))
select('#', cmsgpack.unpack(string.rep('\1', 7000)))
cmsgpack.unpack_one('\1\2\3')
cmsgpack.unpack_one('\1\2\3', 2)
cmsgpack.unpack_one('\1\2\3', 3)
cmsgpack.unpack_one('\1\2\3', 4)
cmsgpack.unpack_one('\1\2\3', -1)
cmsgpack.unpack_one('\1\2\3', 'x')
cmsgpack.unpack_one('', 0)
cmsgpack.unpack_one('\1', 0, 5)
cmsgpack.unpack_one()
cmsgpack.unpack_one('\146\1')
cmsgpack.unpack_limit('\1\2\3', 2)
cmsgpack.unpack_limit('\1\2\3', 2, 1)
cmsgpack.unpack_limit('\1\2\3', 9, 1)
cmsgpack.unpack_limit('\1\2\3', 0)
cmsgpack.unpack_limit('\1\2\3', 0, 1)
cmsgpack.unpack_limit('\1\2\3', 0, 3)
cmsgpack.unpack_limit('\1\2\3', 0, 9)
cmsgpack.unpack_limit('\1\2\3', -1)
cmsgpack.unpack_limit('\1\2\3', 1, -1)
cmsgpack.unpack_limit('\1\2\3')
cmsgpack.unpack_limit('\1\2\3', 'x')
cmsgpack.unpack_limit('\1\2\3', 1, 'x')
cmsgpack.unpack_limit('\1\193', 1)
cmsgpack._NAME, cmsgpack._VERSION, cmsgpack._DESCRIPTION, cmsgpack.safe
"""


def test_values_become_json_as_in_redis(both: Pair) -> None:
    compare_calls(both, ENCODED)


def test_json_is_read_as_in_redis(both: Pair) -> None:
    compare_calls(both, DECODED)


def test_the_settings_of_json_are_those_of_redis(both: Pair) -> None:
    for script in SETTINGS.strip().split("\n"):
        compare(both, f"local c = cjson.new() {script}")


def test_settings_of_the_common_table_stay_for_later_scripts(both: Pair) -> None:
    compare(both, "cjson.encode_number_precision(3)")
    assert compare(both, "return cjson.encode(1/3)") == ("$", b"0.333")
    compare(both, "cjson.encode_number_precision(14)")
    assert compare(both, "return cjson.encode(1/3)") == ("$", b"0.33333333333333")


@pytest.mark.parametrize("many", [7000, 9000])
def test_nothing_is_nested_too_deeply_for_json(both: Pair, many: int) -> None:
    raised = "local c = cjson.new() c.encode_max_depth(2147483647) c.decode_max_depth(2147483647) "
    compare(both, f"{raised} local t = {{}} for i = 1, {many} do t = {{t}} end return #c.encode(t)")
    compare(both, f"{raised} local t = {{}} for i = 1, {many} do t = {{a=t}} end return #c.encode(t)")
    compare(both, f"{raised} return type(c.decode(string.rep('[', {many})))")
    compare(both, f"{raised} return type(c.decode(string.rep('[', {many} / 2) .. string.rep(']', {many} / 2)))")
    compare(both, f"""{raised} return type(c.decode(string.rep('{{"a":', {many})))""")


def test_structs_are_packed_as_in_redis(both: Pair) -> None:
    compare_calls(both, STRUCT)


def test_values_are_packed_and_unpacked_as_in_redis(both: Pair) -> None:
    compare_calls(both, PACKED)


def test_bits_are_as_in_redis(both: Pair) -> None:
    compare_calls(both, BITS)


def test_the_libraries_have_the_same_members_as_in_redis(both: Pair) -> None:
    names = "local names = {} for name, member in pairs(%s) do "
    names += "if name ~= '_COPYRIGHT' then names[#names + 1] = name .. ' ' .. type(member) end end "
    for library in LIBRARIES:
        compare(both, names % library + "table.sort(names) return names")
        compare(both, f"{library}.x = 1")
        compare(both, f"rawset({library}, 'x', 1)")


LIBRARIES = ["cjson", "cmsgpack", "struct", "bit"]

# ---- random cases --------------------------------------------------------------------------------------------------

MANY = settings(max_examples=40, deadline=None, suppress_health_check=SLOW_IS_FINE, database=None, derandomize=True)
DECODE = "local found = {} for i = 1, #ARGV do found[i] = all(pcall(cjson.decode, ARGV[i])) end return found"


def quoted(value: bytes) -> str:
    return "'" + "".join(f"\\{byte:03d}" for byte in value) + "'"


NUMBERS = st.one_of(
    st.integers(-300, 300),
    st.integers(-(2**66), 2**66),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([2**n + d for n in (7, 8, 15, 16, 31, 32, 53, 63, 64) for d in (-1, 0, 1)]),
).map(repr)
STRINGS = st.binary(max_size=30).map(quoted)
LEAVES = st.one_of(NUMBERS, STRINGS, st.sampled_from(["true", "false", "nil", "cjson.null", "print", "0/0", "-1/0"]))
KEYS_OF_TABLES = st.one_of(NUMBERS, STRINGS, st.integers(1, 12).map(repr), st.sampled_from(["true", "1.5"]))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=20).map(lambda items: "{" + ",".join(items) + "}"),
        st.dictionaries(KEYS_OF_TABLES, inner, max_size=5).map(
            lambda items: "{" + ",".join(f"[{key}]={item}" for key, item in items.items()) + "}"
        ),
    ),
    max_leaves=20,
)

PIECES = [
    *'{}[]:,"\\',
    '"a"',
    '"b":',
    "1",
    "-0.5e3",
    "01",
    "tru",
    "true",
    "null",
    "nan",
    " ",
    "\n",
    "\\u00e9",
    "\\ud83d",
]
JSON_TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
    st.text(max_size=12).map(lambda text: '"' + text + '"'),
    st.binary(max_size=8).map(lambda raw: raw.decode("latin-1")),
).map(lambda text: text.encode("utf-8", "surrogatepass"))


def test_random_values_become_json_and_messages_as_in_redis(both: Pair) -> None:
    @MANY
    @given(st.lists(VALUES, min_size=1, max_size=12))
    def run(values: list[str]) -> None:
        # What there is of it must come back alike, too.
        script = "local found = {} for i, value in ipairs({%s}) do found[i] = all(pcall(value)) end return found"
        for encode, decode in [("cjson.encode", "cjson.decode"), ("cmsgpack.pack", "cmsgpack.unpack")]:
            calls = (f"function() local text = {encode}({v}) return text, {decode}(text) end" for v in values)
            compare(both, script % ", ".join(calls))

    run()


def test_random_json_is_read_as_in_redis(both: Pair) -> None:
    @MANY
    @given(st.lists(JSON_TEXTS, min_size=1, max_size=30))
    def run(texts: list[bytes]) -> None:
        compare(both, DECODE, *texts)

    run()


def test_random_messages_are_read_as_in_redis(both: Pair) -> None:
    firsts = st.sampled_from([*range(0x80, 0x84), *range(0x90, 0x94), 0xA0, 0xA2, *range(0xC0, 0xE0), 0, 1, 2, 0xFF])
    messages = st.lists(st.one_of(firsts, st.integers(0, 3)), max_size=14).map(bytes)
    script = "local found = {} for i = 1, #ARGV do found[i] = all(pcall(cmsgpack.%s)) end return found"

    @MANY
    @given(st.lists(messages, min_size=1, max_size=30), st.integers(-1, 4), st.integers(-1, 6))
    def run(texts: list[bytes], limit: int, offset: int) -> None:
        compare(both, script % "unpack, ARGV[i]", *texts)
        compare(both, script % f"unpack_limit, ARGV[i], {limit}, {offset}", *texts)

    run()


FORMATS = st.lists(
    st.one_of(
        st.sampled_from([*"bBhHlLTiIfdxscc!<> ", "c0", "c3", "!2", "!4", "!16", "i3", "I5", "i8", "i9", "i16", "z"]),
        st.integers(0, 40).map(lambda size: f"i{size}"),
    ),
    max_size=8,
).map("".join)


def test_random_structs_are_packed_as_in_redis(both: Pair) -> None:
    arguments = st.lists(st.one_of(NUMBERS, STRINGS), min_size=4, max_size=8)

    @MANY
    @given(
        st.lists(st.tuples(FORMATS, arguments, st.binary(max_size=40), st.integers(-2, 20)), min_size=1, max_size=12)
    )
    def run(cases: list[tuple[str, list[str], bytes, int]]) -> None:
        lines = []
        for form, values, data, place in cases:
            lines.append(f"all(pcall(struct.pack, '{form}', {', '.join(values)}))")
            lines.append(f"all(pcall(struct.unpack, '{form}', {quoted(data)}, {place}))")
            lines.append(f"all(pcall(struct.size, '{form}'))")
        compare(both, "return {" + ", ".join(lines) + "}")

    run()


def test_random_bits_are_as_in_redis(both: Pair) -> None:
    names = st.sampled_from(
        ["tobit", "tohex", "bnot", "band", "bor", "bxor", "lshift", "rshift", "arshift", "rol", "ror", "bswap"]
    )

    @MANY
    @given(st.lists(st.tuples(names, st.lists(NUMBERS, min_size=1, max_size=3)), min_size=1, max_size=30))
    def run(calls: list[tuple[str, list[str]]]) -> None:
        shown = (f"all(pcall(bit.{name}, {', '.join(arguments)}))" for name, arguments in calls)
        compare(both, "return {" + ", ".join(shown) + "}")

    run()


# ---- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        "cjson.encode_sparse_array(false, 0) return #cjson.encode({[2147483647]=1})",
        "local t = {} for i = 1, 100 do t[i] = string.rep('x', 1000000) end return #cjson.encode(t)",
        "return cjson.decode('[' .. string.rep('[],', 3000000) .. '1]')",
        "local t = {} for i = 1, 100 do t[i] = string.rep('x', 1000000) end return #cmsgpack.pack(t)",
        "return cmsgpack.unpack('\\221\\255\\255\\255\\255' .. string.rep('\\144', 3000000))",
        "return #struct.pack(string.rep('s', 60), unpack((function() local t = {} for i = 1, 60 do "
        "t[i] = string.rep('x', 2000000) end return t end)()))",
    ],
)
def test_what_the_libraries_make_counts_as_memory_of_scripts(our_peer: Any, call: str) -> None:
    with redis.Redis(unix_socket_path=str(our_peer.unix_path)) as client:
        with pytest.raises(redis.ResponseError, match="not enough memory"):
            client.eval(call, 0)
        client.eval("cjson.encode_sparse_array(false, 2, 10)", 0)
        assert client.eval("return cjson.encode({string.rep('x', 1000000)})", 0) == b'["' + b"x" * 1_000_000 + b'"]'
        assert client.info()["used_memory_lua"] < 40 << 20
