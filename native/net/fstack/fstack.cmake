# replay-server-fstack: the server over an F-Stack that the user has installed, found by FF_PATH (its source folder, where
# lib/libfstack.a was built), by pkg-config, or where its `make install` puts it.
set(FF_PATH "" CACHE PATH "F-Stack's source folder, built")
# A build folder that was made before F-Stack was there, or with another one, must not keep to that.
if(NOT "$ENV{FF_PATH}" STREQUAL "" AND NOT "$ENV{FF_PATH}" STREQUAL "${FF_PATH}")
  set(FF_PATH "$ENV{FF_PATH}" CACHE PATH "F-Stack's source folder, built" FORCE)
  unset(FSTACK_INCLUDE CACHE)
  unset(FSTACK_LIBRARY CACHE)
endif()
if(PkgConfig_FOUND)
  pkg_check_modules(FSTACK QUIET libfstack)
endif()
find_path(FSTACK_INCLUDE ff_api.h HINTS ${FF_PATH}/lib ${FSTACK_INCLUDE_DIRS})
find_library(FSTACK_LIBRARY fstack HINTS ${FF_PATH}/lib ${FSTACK_LIBRARY_DIRS})
find_library(FSTACK_CRYPTO crypto)
find_library(FSTACK_NUMA numa)
find_library(FSTACK_BOND rte_net_bond HINTS ${DPDK_LIBRARY_DIRS})

if(NOT DPDK_FOUND)
  message(STATUS "replay-server-fstack is not built: libdpdk-dev was not found")
elseif(NOT FSTACK_INCLUDE OR NOT FSTACK_LIBRARY)
  message(STATUS "replay-server-fstack is not built: F-Stack was not found (set FF_PATH to its folder, after `make` in lib/)")
elseif(NOT FSTACK_CRYPTO OR NOT FSTACK_NUMA OR NOT FSTACK_BOND)
  message(STATUS "replay-server-fstack is not built: F-Stack needs libssl-dev, libnuma-dev and DPDK's bonding driver")
else()
  message(STATUS "replay-server-fstack: over ${FSTACK_LIBRARY}, DPDK ${DPDK_VERSION}")
  file(GLOB fstack_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.c)
  add_executable(replay-server-fstack server/process/main_fstack.c ${fstack_sources} net/dpdk/eal.c net/dpdk/offloads.c
                 net/dpdk/pool.c net/dpdk/start.c)
  set_target_properties(replay-server-fstack PROPERTIES C_EXTENSIONS ON) # DPDK's headers are in GNU C
  target_include_directories(replay-server-fstack SYSTEM PRIVATE ${FSTACK_INCLUDE} ${DPDK_INCLUDE_DIRS})
  target_compile_options(replay-server-fstack PRIVATE ${DPDK_CFLAGS_OTHER})
  # libfstack.a is linked whole, as its examples do: it registers its parts by constructors. See wraps.h for the wraps.
  target_link_libraries(replay-server-fstack PRIVATE replay_core
    -Wl,--whole-archive ${FSTACK_LIBRARY} -Wl,--no-whole-archive
    ${DPDK_LINK_LIBRARIES} ${FSTACK_BOND} ${FSTACK_CRYPTO} ${FSTACK_NUMA} Threads::Threads m rt ${CMAKE_DL_LIBS}
    -Wl,--wrap=rte_eal_init,--wrap=rte_pktmbuf_pool_create,--wrap=rte_eth_dev_adjust_nb_rx_tx_desc
    -Wl,--wrap=rte_eth_macaddr_get,--wrap=rte_eth_dev_info_get)
  install(TARGETS replay-server-fstack RUNTIME DESTINATION replay_server/bin)
endif()
